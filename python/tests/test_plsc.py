"""`plsc.Entry`: a classifier whose classes workers divide."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

import fleet
from fleet import compat
from fleet.compat.plsc import Entry, _images, models
from jobs import FLEETRUN

#: 7 classes, which 2 workers cannot divide evenly. The batches of both are those of one.
SCRIPT = """
import sys
import numpy as np
import paddle
import paddle.distributed.fleet as fleet
from plsc import Entry
from plsc.models import BaseModel

loss_type, out, at_once = sys.argv[1], sys.argv[2], int(sys.argv[3])


class Network(BaseModel):
    def build_network(self, input, label, is_train=True):
        return paddle.static.nn.fc(input, 16)


def samples(seed, count):
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(9).standard_normal((7, 3, 4, 4))
    labels = rng.integers(7, size=count)
    return [(centers[l] + 0.1 * rng.standard_normal((3, 4, 4)), l) for l in labels]


def batches():
    for step in range(30):
        made = samples(step, 16)
        yield from (made[at : at + at_once] for at in range(0, 16, at_once))


entry = Entry()
entry.set_class_num(7)
entry.set_image_shape([3, 4, 4])
entry.set_train_batch_size(at_once)
entry.set_train_epochs(2)
entry.set_loss_type(loss_type)
entry.set_optimizer(paddle.optimizer.SGD(0.5 if "softmax" in loss_type else 0.02))
entry.set_model(Network())
entry.set_model_save_dir(out)
entry.train_reader = batches
entry.test_reader = lambda: iter([samples(1000, 50)])
entry.train()
whole = fleet.whole_model()
if whole is not None:
    np.save(f"{out}.npy", whole.scope["classes.w_0"])
"""


@pytest.fixture(autouse=True)
def leaves_the_job(monkeypatch):
    monkeypatch.setattr(fleet.distributed.fleet._job, "_job", None)


def run(folder, call):
    ran = subprocess.run(call, capture_output=True, text=True, cwd=folder, timeout=120)
    logs = "".join(path.read_text() for path in sorted((folder / "log").glob("*log*")))
    assert ran.returncode == 0, ran.stdout + ran.stderr + logs
    return ran.stdout + logs


@pytest.mark.parametrize("loss_type", ["dist_softmax", "dist_arcface"])
def test_two_workers_train_the_classes_that_one_trains(tmp_path, loss_type):
    (tmp_path / "train.py").write_text(SCRIPT)
    one = run(tmp_path, [sys.executable, "-m", "fleet.compat", "train.py", loss_type, "one", "16"])
    workers = [FLEETRUN, "--compat=paddle", "--nproc_per_node=2"]
    two = run(tmp_path, [*workers, "train.py", loss_type, "two", "8"])
    weights = [np.load(tmp_path / f"{name}.npy") for name in ("one", "two")]
    assert weights[0].shape == (7, 16)
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-4, atol=1e-5)
    for text in (one, two):
        accuracy = float(text.partition("test: acc1 ")[2].split(",")[0])
        assert accuracy > 0.9, text
    assert not (tmp_path / "two" / "checkpoints").exists()
    # The save of both workers is whole: it also loads in one process.
    entry = small(tmp_path / "two")
    entry.test_reader = lambda: iter([[(np.zeros((3, 4, 4)), 0)]])
    assert entry.test()[1] in (0.0, 1.0)
    entry.predict_reader = lambda: iter([[(np.ones((3, 4, 4)),)] * 3])
    assert entry.predict().shape == (3, 16)
    entry.convert_for_prediction()
    assert (tmp_path / "two" / "inference").is_dir()


class Small(models.BaseModel):
    def build_network(self, input, label, is_train=True):
        return fleet.static.nn.fc(input, 16)


def small(folder):
    """Returns an entry for the model that the script has trained."""
    entry = Entry()
    entry.set_class_num(7)
    entry.set_image_shape([3, 4, 4])
    entry.set_model(Small())
    entry.set_model_save_dir(folder)
    entry.set_loss_type("arcface")
    return entry


def test_the_default_network_trains_on_generated_images(tmp_path):
    entry = Entry()
    entry.set_class_num(5)
    entry.set_emb_size(8)
    entry.set_image_shape((3, 16, 16))
    entry.set_train_batch_size(2)
    entry.set_train_epochs(1)
    entry.set_sample_ratio(0.5)
    entry.set_model_save_dir(tmp_path / "out")
    with warnings.catch_warnings(record=True):
        trained = entry.train()
    assert trained.step == _images.BATCHES
    assert (tmp_path / "out" / "model").is_dir()


def test_defaults_are_those_of_the_documents():
    entry = Entry()
    assert (entry.num_classes, entry.emb_dim, entry.train_batch_size) == (85742, 512, 128)
    assert (entry.loss_type, entry.margin, entry.scale) == ("dist_arcface", 0.5, 64.0)
    assert (entry.lr, entry.lr_steps) == (0.1, (100000, 160000, 220000))


@pytest.mark.parametrize(
    "call, parts",
    [
        (lambda e: e.set_class_num(0), ["class_num", "1 or more"]),
        (lambda e: e.set_loss_type("cosface"), ["loss_type", "dist_arcface", "'cosface'"]),
        (lambda e: e.set_model(3), ["model", "BaseModel"]),
        (lambda e: e.set_image_shape([3]), ["image_shape", "3 numbers"]),
        (lambda e: e.set_val_targets("lfw"), ["val_targets", "test_reader"]),
        (lambda e: e.set_hdfs_info("a", "b"), ["set_hdfs_info", "model_save_dir"]),
        (lambda e: e.set_sample_ratio(2), ["sample_ratio", "up to 1"]),
        (lambda e: e.test(), ["no/model"]),
    ],
)
def test_wrong_settings(call, parts):
    entry = small("no")
    with pytest.raises((ValueError, NotImplementedError, RuntimeError, OSError)) as caught:
        call(entry)
    assert all(part in str(caught.value) for part in parts), caught.value


def test_a_folder_without_images(tmp_path):
    entry = small(tmp_path)
    entry.set_dataset_dir(tmp_path / "faces")
    with pytest.raises(FileNotFoundError, match="label.txt does not exist"):
        entry.train()
    (tmp_path / "faces").mkdir()
    (tmp_path / "faces" / "label.txt").write_text("a.png 9\n")
    with pytest.raises((ValueError, ImportError), match="label.txt:1: expected|Pillow"):
        entry.train()


def test_a_wrong_sample_names_the_input(tmp_path):
    entry = small(tmp_path)
    entry.train_reader = lambda: iter([[(np.zeros((3, 4, 5)), 0)]])
    with pytest.raises(ValueError, match=r"'image' of shape \[3, 4, 4\]"):
        entry.train()


def test_plsc_is_a_module_of_paddle_scripts():
    compat.install()
    try:
        import plsc

        assert plsc.Entry is Entry
    finally:
        compat.uninstall()
