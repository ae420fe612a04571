"""`import paddle` as this package, and the readers and models that generate their data."""

import importlib
import os
import subprocess
import sys
import sysconfig
import warnings

import numpy as np
import pytest

import fleet
from fleet import compat, nn, static

FLEETRUN = os.path.join(sysconfig.get_path("scripts"), "fleetrun")


@pytest.fixture
def paddle():
    compat.install()
    yield importlib.import_module("paddle")
    compat.uninstall()


def run(call, folder, **env):
    return subprocess.run(
        [str(part) for part in call],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        env={**os.environ, **env},
    )


@pytest.mark.parametrize(
    "name, meant",
    [
        ("paddle.static.nn", "fleet.static.nn"),
        ("paddle.nn.functional", "fleet.nn.functional"),
        ("paddle.optimizer.lr", "fleet.optimizer.lr"),
        ("paddle.regularizer", "fleet.regularizer"),
        ("paddle.metric", "fleet.metric"),
        ("paddle.utils.unique_name", "fleet.utils.unique_name"),
        ("paddle.vision", "fleet.vision"),
        ("paddle.dataset.flowers", "fleet.dataset.flowers"),
        ("paddle.distributed.fleet", "fleet.distributed.fleet"),
        ("paddle.distributed.fleet.base.role_maker", "fleet.distributed.fleet.base.role_maker"),
        ("paddle.fluid.layers", "fleet.fluid.layers"),
        ("paddle.fluid.regularizer", "fleet.regularizer"),
        ("paddle.fluid.unique_name", "fleet.utils.unique_name"),
        ("paddle.fluid.incubate.fleet.base.role_maker", "fleet.distributed.fleet.base.role_maker"),
        ("paddle.fluid.incubate.fleet.collective", "fleet.fluid.incubate.fleet.collective"),
        ("fleetx", "fleet.compat.fleetx"),
        ("fleetx.applications", "fleet.compat.fleetx.applications"),
    ],
)
def test_names_are_the_same_modules(paddle, name, meant):
    module = importlib.import_module(meant)
    spec = module.__spec__
    assert importlib.import_module(name) is module
    # The module keeps its own name.
    assert module.__spec__ is spec and module.__name__ == meant
    assert hasattr(module, "__path__") == (spec.submodule_search_locations is not None)
    assert compat.target(name) == meant


def test_only_paddle_has_the_version_of_paddle(paddle):
    assert paddle.__version__ == compat.VERSION == "2.0.0"
    assert fleet.__version__ == fleet._version.__version__ != "2.0.0"
    assert paddle.__name__ == "paddle" and fleet.__name__ == "fleet"
    # All else is the package: what it has now and later, and what scripts assign.
    assert paddle.nn is fleet.nn and dir(paddle) == dir(fleet)
    paddle.mine = 3
    assert fleet.mine == 3
    del paddle.mine
    assert not hasattr(fleet, "mine")
    space = {}
    exec("from paddle import *", space)
    assert space["static"] is static and "__version__" not in space


def test_spellings_of_imports(paddle):
    space = {}
    lines = [
        "import paddle.fluid as fluid",
        "import paddle.distributed.fleet as jobs",
        "from paddle.distributed import fleet as same_jobs",
        "from paddle.distributed.fleet.base import role_maker",
        "from paddle.fluid.incubate.fleet.collective import fleet as old_jobs, DistributedStrategy",
        "from paddle.nn import Layer, functional as F",
        "import fleetx as X",
    ]
    exec("\n".join(lines), space)
    assert space["fluid"] is fleet.fluid
    assert space["jobs"] is space["same_jobs"] is space["old_jobs"] is fleet.distributed.fleet
    assert space["role_maker"] is fleet.distributed.fleet.base.role_maker
    assert space["Layer"] is nn.Layer and space["F"] is nn.functional
    assert space["X"].applications.Resnet50


@pytest.mark.parametrize(
    "line, parts",
    [
        ("import plsc.utils", ["no module for plsc.utils", "docs/python.md"]),
        ("from paddle import DataParallel", ["DataParallel", "distributed_optimizer"]),
        ("paddle.DataParallel(1)", ["DataParallel", "distributed_optimizer"]),
        ("import paddle.inference", ["does not support inference", "load_inference_model"]),
        ("import paddle.fluid.dygraph", ["dygraph", "paddle.static.nn"]),
        ("from paddle.fluid.dygraph import to_variable", ["dygraph", "paddle.static.nn"]),
        ("paddle.disable_static()", ["dynamic graph", "paddle.static.Executor"]),
        ("paddle.to_tensor([1])", ["to_tensor", "feed"]),
        ("paddle.nn.LSTM(3, 3)", ["LSTM", "paddle.static.nn"]),
        ("paddle.static.nn.case([])", ["case", "paddle.static.nn.cond", "paddle.where"]),
        ("from paddle.fluid.layers import Print", ["Print", "exe.run(fetch_list"]),
        ("from paddle.static.nn import while_loop", ["while_loop", "loop in Python"]),
        ("from paddle.vision import transforms", ["transforms", "help:"]),
        ("import paddle.no.such", ["no module for paddle.no", "docs/python.md"]),
    ],
)
def test_what_is_not_supported_names_the_alternative(paddle, raises, line, parts):
    raises(NotImplementedError, parts, lambda: exec(line, {"paddle": paddle}))


def test_an_installed_paddle_is_hidden_on_request_only(tmp_path):
    (tmp_path / "paddle.py").write_text("REAL = True")
    script = "import sys, fleet, paddle\nassert paddle.REAL\nfrom fleet import compat\n"
    script += "try:\n    compat.install()\nexcept RuntimeError as error:\n    print(error)\n"
    script += "del sys.modules['paddle']\ncompat.install()\nimport paddle\n"
    script += "assert paddle.static is fleet.static\ncompat.uninstall()\n"
    script += "import paddle\nassert paddle.REAL\n"
    (tmp_path / "script.py").write_text(script)
    ran = run([sys.executable, "script.py"], tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "'paddle' is imported already" in ran.stdout


SCRIPT = """
import sys
import fleet as package
import paddle
import helper
from fleetx.utils import Downloader

assert __name__ == "__main__" and sys.modules["__main__"].paddle is paddle
assert paddle.static is package.static and sys.argv == [__file__, "--lr", "1"], sys.argv
x = paddle.static.data("x", [None, 2])
print(paddle.static.default_main_program(), helper.NAME)
if not sys.flags.safe_path:
    import os, subprocess
    code = "import paddle, fleet; assert paddle.nn is fleet.nn; print('child', fleet.nn.Linear)"
    subprocess.run(f'python -c "{code}"', shell=True, check=True)
"""


def test_a_script_runs_as_it_is(tmp_path):
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "train.py"
    script.write_text(SCRIPT.replace("sys.flags.safe_path", "getattr(sys.flags, 'safe_path', 0)"))
    (tmp_path / "scripts" / "helper.py").write_text("NAME = 'helper of the script'")
    ran = run([sys.executable, "-m", "fleet.compat", script, "--lr", "1"], tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "%x: f32[-1, 2] data" in ran.stdout and "helper of the script" in ran.stdout
    assert "child <class 'fleet.nn.layer.Linear'>" in ran.stdout
    # Ops have the script's lines; errors have its traceback, and its exit code.
    script.write_text("import paddle\npaddle.static.nn.fc(3, 1)\n")
    ran = run([sys.executable, "-m", "fleet.compat", script], tmp_path)
    assert ran.returncode == 1 and f'{script}", line 2' in ran.stderr
    script.write_text("import sys\nsys.exit(7)")
    assert run([sys.executable, "-m", "fleet.compat", script], tmp_path).returncode == 7


def test_a_module_runs_as_a_script(tmp_path):
    (tmp_path / "train.py").write_text("import sys, paddle\nprint(sys.argv[1:], __name__)")
    ran = run([sys.executable, "-m", "fleet.compat", "-m", "train", "a"], tmp_path)
    assert ran.returncode == 0 and "['a'] __main__" in ran.stdout, ran.stderr


@pytest.mark.parametrize("args", [[], ["-x"], ["no_such.py"], ["-m"]])
def test_wrong_command_lines(tmp_path, args):
    ran = run([sys.executable, "-m", "fleet.compat", *args], tmp_path)
    assert ran.returncode == 2 and "script" in ran.stderr and "Traceback" not in ran.stderr


def test_fleetrun_starts_scripts_for_paddle(tmp_path):
    script = "import paddle\nfrom paddle.distributed import fleet\n"
    script += (
        "fleet.init(is_collective=True)\nprint('rank', fleet.worker_index(), paddle.__name__)\n"
    )
    (tmp_path / "train.py").write_text(script)
    call = [FLEETRUN, "--nproc_per_node=2", "--compat=paddle", "train.py"]
    ran = run(call, tmp_path)
    logs = "".join(path.read_text() for path in sorted((tmp_path / "log").glob("workerlog.*")))
    assert ran.returncode == 0, ran.stderr + logs
    assert "rank 0 paddle" in logs and "rank 1 paddle" in logs


def test_a_folder_lets_other_processes_import_it(tmp_path):
    script = "import paddle, fleet\nassert paddle.static is fleet.static\n"
    script += "ranks = paddle.distributed.get_rank(), paddle.distributed.get_world_size()\n"
    script += "print('rank', *ranks)\n"
    (tmp_path / "train.py").write_text(script)
    folder = run([sys.executable, "-m", "fleet.compat", "--path"], tmp_path).stdout.strip()
    paths = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    call = [sys.executable, "-m", "paddle.distributed.launch", "--gpus=0,1", "train.py"]
    ran = run(call, tmp_path, PYTHONPATH=paths)
    logs = "".join(path.read_text() for path in sorted((tmp_path / "log").glob("workerlog.*")))
    assert ran.returncode == 0, ran.stderr + logs
    assert "rank 0 2" in logs and "rank 1 2" in logs


def test_a_gpu_is_the_cpu_with_one_warning(paddle, monkeypatch):
    from fleet import _executor

    monkeypatch.setattr(_executor.CUDAPlace, "_warned", False)
    with pytest.warns(RuntimeWarning, match="run on the CPU"):
        place = paddle.CUDAPlace(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paddle.static.Executor(paddle.CUDAPlace(1)).close()
    assert repr(place) == "CUDAPlace(0)"
    assert repr(paddle.set_device("gpu:1")) == "CUDAPlace(1)"
    assert repr(paddle.set_device("cpu")) == "CPUPlace()" and paddle.get_device() == "cpu"
    for wrong in ["xpu", "gpu:x", 0]:
        with pytest.raises(ValueError, match="'gpu:N'"):
            paddle.set_device(wrong)


def test_a_fetched_number_can_be_printed(paddle, exe):
    x = static.data("x", [None, 2])
    mean = paddle.mean(x)
    feed = {"x": np.full((3, 2), 1.5, "float32")}
    value, same = exe.run(feed=feed, fetch_list=[mean, x])
    assert value.shape == (1,) and "%.2f %d" % (value, value) == "1.50 1" and float(value) == 1.5
    assert type(same) is np.ndarray
    compat.uninstall()
    assert type(exe.run(feed=feed, fetch_list=[mean])[0]) is np.ndarray


def test_the_third_argument_of_a_save_may_be_its_mode(monkeypatch):
    from fleet.distributed.fleet import _servers

    class Job:
        def has_servers(self):
            return True

    saves = []
    monkeypatch.setattr(_servers, "joined", Job)
    monkeypatch.setattr(_servers, "is_server", lambda: False)
    monkeypatch.setattr(_servers, "is_first_worker", lambda: True)
    monkeypatch.setattr(_servers._fleet, "save_tables", lambda job, *given: saves.append(given))
    fleet.distributed.fleet.save_persistables(None, "folder", 2)
    fleet.distributed.fleet.save_persistables(None, "folder", None, 1)
    fleet.distributed.fleet.save_persistables("folder")
    assert [given[2] for given in saves] == [2, 1, 0]


def first(reader, count=3):
    return [sample for sample, _ in zip(reader(), range(count))]


def test_generated_data_has_the_public_shapes():
    data = fleet.dataset
    words, grams = data.imdb.word_dict(), data.imikolov.build_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        readers = {
            "mnist": (data.mnist.train(), 784, 10),
            "mnist_test": (data.mnist.test(), 784, 10),
            "cifar10": (data.cifar.train10(cycle=True), 3072, 10),
            "cifar100": (data.cifar.test100(), 3072, 100),
            "flowers": (data.flowers.train(use_xmap=True), 3 * 224 * 224, 102),
            "valid": (data.flowers.valid(), 3 * 224 * 224, 102),
        }
        for name, (reader, size, classes) in readers.items():
            samples = first(reader)
            for image, label in samples:
                assert image.shape == (size,) and image.dtype == np.float32, name
                assert -1.0 <= image.min() and image.max() <= 1.0
                assert isinstance(label, int) and 0 <= label < classes
            again = first(reader)
            assert all(np.array_equal(a[0], b[0]) for a, b in zip(samples, again)), name
        features, price = first(data.uci_housing.train())[0]
        assert features.shape == (13,) and price.shape == (1,)
        ids, label = first(data.imdb.train(words))[0]
        assert label in (0, 1) and 0 <= min(ids) and max(ids) < len(words)
        gram = first(data.imikolov.train(grams, 5))[0]
        assert len(gram) == 5 and gram[0] == grams["<s>"]
        kind = data.imikolov.DataType.SEQ
        source, target = first(data.imikolov.test(grams, 0, kind))[0]
        assert source[1:] == target[:-1] and target[-1] == grams["<e>"]


def test_generated_data_says_so():
    from fleet.dataset import _generated

    _generated._warned.discard("dataset.mnist")
    with pytest.warns(UserWarning, match="dataset.mnist: the samples are generated") as caught:
        reader = fleet.dataset.mnist.train()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(fleet.dataset.mnist.train()())
        next(reader())


def test_the_numbers_of_samples_can_be_assigned(monkeypatch):
    monkeypatch.setitem(fleet.dataset.uci_housing.SAMPLES, "train", 3)
    assert len(list(fleet.dataset.uci_housing.train()())) == 3


def test_prices_of_houses_can_be_learnt(exe):
    x, y = static.data("x", [None, 13]), static.data("y", [None, 1])
    loss = nn.functional.mse_loss(static.nn.fc(x, 1), y)
    fleet.optimizer.SGD(learning_rate=0.1).minimize(loss)
    exe.run(static.default_startup_program())
    samples = list(fleet.dataset.uci_housing.train()())
    feed = {"x": np.array([s[0] for s in samples]), "y": np.array([s[1] for s in samples])}
    losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(400)]
    # The noise has a variance of 0.25.
    assert losses[0] > 100 and losses[-1] < 3


def test_models_of_fleetx_train_on_generated_data(paddle, exe):
    import fleetx as X

    X.applications.Word2vec.SAMPLES = 2000
    model = X.applications.Word2vec(vocabulary=50, width=16)
    with pytest.warns(UserWarning, match="generated"):
        loader = model.load_dataset_from_file(["train.txt"], "dict.txt", batch_size=50)
    paddle.optimizer.SGD(0.5).minimize(model.cost)
    exe.run(static.default_startup_program())
    losses = [exe.run(feed=feed, fetch_list=[model.cost])[0] for feed in loader()]
    assert len(losses) == 40 and np.mean(losses[-5:]) < np.mean(losses[:5])


def test_resnet_of_fleetx_is_that_of_rust(paddle, exe):
    import fleetx as X

    model = X.applications.Resnet50(classes=10, size=32)
    assert [variable.name for variable in model.inputs] == ["x", "y"]
    with pytest.warns(UserWarning, match="generated"):
        loader = model.load_imagenet_from_file("train.txt", batch_size=2, use_dali=True)
    exe.run(static.default_startup_program())
    feed = next(loader())
    test = static.default_main_program().clone(for_test=True)
    (loss,) = exe.run(test, feed=feed, fetch_list=[model.loss])
    assert feed["x"].shape == (2, 3, 32, 32) and np.isfinite(loss)
    assert static.default_main_program().op_names.count("conv2d") == 53


def test_settings_of_fleetx(paddle, monkeypatch, raises):
    import fleetx as X

    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.5"])
    configs = X.parse_train_configs()
    assert (configs.lr, configs.momentum) == (0.5, 0.9)
    raises(
        NotImplementedError,
        ["Downloader of the Rust API"],
        lambda: (X.utils.Downloader().download_from_hdfs("fs.yaml")),
    )


def test_errors_have_the_names_of_the_script(paddle, raises):
    text = raises(AttributeError, ["module 'paddle.io'", "paddle.io.BatchSampler"],
                  lambda: paddle.io.RandomSampler)
    assert "fleet" not in text
    raises(AttributeError, ["'paddle.distributed.fleet'"], lambda: paddle.distributed.fleet.nothing)
    x = static.data("x", [None, 2])
    label = static.data("label", [None, 1], "int64")
    cases = [
        (TypeError, "paddle.gather", lambda: x[[0]]),
        (TypeError, "paddle.set_device", lambda: paddle.static.Executor("cpu")),
        (NotImplementedError, "paddle.shape", lambda: paddle.full([2, paddle.shape(x)[0]], 1.0)),
        (NotImplementedError, "paddle.shape", lambda: static.accuracy(x, label, total=x)),
        (ValueError, "paddle.static.nn.embedding", lambda: (
            paddle.fluid.layers.embedding(x, [3, 3]))),
        (NotImplementedError, "paddle.cast", lambda: paddle.argmax(x, dtype="int32")),
        (TypeError, "paddle.nn.initializer", lambda: static.create_parameter(
            [2], "float32", default_initializer=3)),
        (TypeError, "paddle.optimizer.lr", lambda: paddle.optimizer.SGD("fast")),
        (TypeError, "paddle.nn.ClipGradBy", lambda: paddle.optimizer.SGD(0.1, grad_clip=3)),
        (NotImplementedError, "paddle.static.name_scope", lambda: (
            paddle.utils.unique_name.guard("a").__enter__())),
    ]
    for kind, name, call in cases:
        text = raises(kind, [name], call)
        assert "fleet." not in text.replace("paddle.distributed.fleet", ""), text
    # What scripts call `fleet` is the module of jobs.
    raises(RuntimeError, ["call fleet.init first"], fleet.distributed.fleet.worker_num)
    compat.uninstall()
    raises(AttributeError, ["module 'fleet.io'"], lambda: fleet.io.RandomSampler)
    raises(TypeError, ["fleet.gather"], lambda: x[[0]])


def test_errors_pass_through_the_spelling():
    """Texts of exceptions that have names of the package are spelled as the script does."""
    import ast
    import pathlib
    import re

    own = "|".join(name for name in vars(fleet) if not name.startswith("_"))
    folder = pathlib.Path(fleet.__file__).parent
    missing = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or node.exc is None:
                continue
            parts = [part for part in ast.walk(node.exc) if isinstance(part, ast.Constant)]
            text = "".join(part.value for part in parts if isinstance(part.value, str))
            names = [part.id for part in ast.walk(node.exc) if isinstance(part, ast.Name)]
            of_package = re.search(rf"(?<![\w.])fleet\.(?!compat)({own})\b", text)
            if of_package and not {"_spelled", "_unsupported"} & {*names}:
                missing.append(f"{path.name}:{node.lineno}")
    assert not missing


def test_names_that_are_spelled(paddle):
    from fleet._absent import spelled

    for text, wanted in [
        ("use fleet.static.nn.fc(x)", "use paddle.static.nn.fc(x)"),
        ("call fleet.init_worker()", "call fleet.init_worker()"),
        ("fleet.distributed.fleet.util", "paddle.distributed.fleet.util"),
        ("fleet.utils.unique_name", "paddle.utils.unique_name"),
        ("fleet.utils.ps_util.DistributedInfer", "fleet.utils.ps_util.DistributedInfer"),
        ("fleet.compat.install()", "fleet.compat.install()"),
        ("module 'fleet' has", "module 'paddle' has"),
        ("a fleet.", "a fleet."),
        ("paddle.distributed.fleet.nn", "paddle.distributed.fleet.nn"),
    ]:
        assert spelled(text) == wanted


@pytest.mark.parametrize("code", ["import paddle\n\ndef f():\n    1 / 0\n\nf()\n", "x = = 1\n"])
def test_a_traceback_begins_at_the_script(tmp_path, code):
    (tmp_path / "script.py").write_text(code)
    ran = run([sys.executable, "-m", "fleet.compat", "script.py"], tmp_path)
    assert ran.returncode == 1 and "runpy" not in ran.stderr and "__main__" not in ran.stderr
    assert 'script.py", line' in ran.stderr.splitlines()[0 if "= =" in code else 1]
