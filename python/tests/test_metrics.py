"""Metrics across workers: the recorded values of one worker, inputs, and wrong ones. Jobs of two
workers are in `test_servers.py`."""

import numpy as np
import pytest

import fleet as package
from fleet import static
from fleet.distributed import fleet


@pytest.fixture(autouse=True)
def job():
    fleet.init()


def test_recorded_values():
    one = np.array
    assert fleet.metrics.acc(one([7.0]), one([10.0])) == 0.7
    assert fleet.metrics.mae(one([3.5]), one([7.0])) == 0.5
    assert fleet.metrics.mse(one([18.0]), one([8.0])) == 2.25
    assert fleet.metrics.rmse(one([18.0]), one([8.0])) == 1.5
    for reduce in [fleet.metrics.sum, fleet.metrics.max, fleet.metrics.min]:
        assert reduce(one([[1.0, 2.0]])).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    "positives, negatives, expected",
    [
        ([0, 0, 0, 4], [5, 0, 0, 0], 1.0),
        ([4, 0, 0, 0], [0, 0, 0, 5], 0.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], 0.75),
        ([0, 3, 0, 0], [0, 5, 0, 0], 0.5),
        ([0, 0, 0, 0], [1, 2, 3, 4], 0.5),
        ([1, 2, 3, 4], [0, 0, 0, 0], 0.5),
        ([0, 1, 0, 2, 3, 1, 5, 9], [7, 5, 4, 2, 3, 0, 1, 1], 0.8964803312629399),
    ],
)
def test_recorded_areas(positives, negatives, expected):
    counts = np.array([positives]), np.array([negatives])
    assert fleet.metrics.auc(*counts) == pytest.approx(expected, abs=1e-15)


def test_variables_and_their_names(exe):
    label = static.data("label", [None, 1])
    correct = static.create_global_var([1], 0.0, "float32", persistable=True, name="right_cnt")
    total = static.create_global_var([1], 0.0, "float32", persistable=True, name="total_cnt")
    package.assign(correct + package.sum(label), correct)
    package.assign(total + package.sum(label * 0.0 + 1.0), total)
    exe.run(static.default_startup_program())
    for batch in [[1, 0, 1], [1, 1]]:
        exe.run(feed={"label": np.array(batch, "float32").reshape(-1, 1)})
    count = fleet.metrics.sum(total)
    assert count.shape == (1,) and count.dtype == np.float32 and float(count[0]) == 5.0
    assert fleet.metrics.acc(correct, "total_cnt") == pytest.approx(0.8)
    scope = static.Scope()
    with static.scope_guard(scope):
        exe.run(static.default_startup_program())
        exe.run(feed={"label": np.ones((2, 1), "float32")})
    assert fleet.metrics.acc("right_cnt", total, scope=scope, util=fleet.util) == 1.0
    assert fleet.metrics.max(3) == 3 and fleet.metrics.sum([1, 2]).dtype == np.int64


def test_the_area_of_a_network(exe):
    score, label = static.data("score", [None, 2]), static.data("label", [None, 1], "int64")
    area, _, (_, _, positives, negatives) = static.auc(score, label, num_thresholds=255)
    exe.run(static.default_startup_program())
    rng = np.random.default_rng(0)
    for _ in range(3):
        labels = rng.integers(0, 2, (32, 1))
        scores = (0.3 * labels + 0.7 * rng.random((32, 1))).astype("float32")
        feed = {"score": np.concatenate([1 - scores, scores], 1), "label": labels}
        (shown,) = exe.run(feed=feed, fetch_list=[area])
    assert 0.5 < float(shown.ravel()[0]) < 1.0
    assert fleet.metrics.auc(positives, negatives) == pytest.approx(float(shown.ravel()[0]))


def test_wrong_inputs(raises):
    raises(ValueError, ["no_such"], lambda: fleet.metrics.sum("no_such"))
    raises(TypeError, ["scope", "'here'"], lambda: fleet.metrics.sum(1.0, scope="here"))
    raises(TypeError, ["util", "fleet.util"], lambda: fleet.metrics.sum(1.0, util=object()))
    raises(TypeError, ["expected numbers"], lambda: fleet.metrics.sum(np.array(["a"])))
    raises(ValueError, ["empty"], lambda: fleet.metrics.acc(np.array([]), np.array([1.0])))
    raises(ValueError, ["buckets", "2"], lambda: fleet.metrics.auc([[1, 2]], [[1, 2, 3]]))
    raises(ValueError, ["comm_world"], lambda: fleet.util.all_reduce(1.0, comm_world="workers"))
    raises(ValueError, ["mode", "mean"], lambda: fleet.util.all_reduce(1.0, mode="mean"))
    raises(TypeError, ["files should be a list"], lambda: fleet.util.get_file_shard("part-0"))


def test_util_of_one_worker(tmp_path, capfd):
    assert fleet.util.all_gather(3) == [3]
    assert fleet.util.all_gather(np.array([1, 2]))[0].tolist() == [1, 2]
    assert fleet.util.get_file_shard(["a", "b"]) == ["a", "b"]
    fleet.util.barrier()
    fleet.util.print_on_rank("on worker 0", 0)
    fleet.util.print_on_rank("on worker 1", 1)
    assert capfd.readouterr().out == "on worker 0\n"
    files = fleet.util.get_fs()
    files.mkdirs(str(tmp_path / "a" / "b"))
    (tmp_path / "a" / "file").write_text("text")
    assert files.ls_dir(str(tmp_path / "a")) == (["b"], ["file"])
    assert files.is_dir(str(tmp_path / "a")) and files.is_file(str(tmp_path / "a" / "file"))
    files.upload(str(tmp_path / "a" / "file"), str(tmp_path / "a" / "b"))
    files.mv(str(tmp_path / "a" / "b"), str(tmp_path / "c"))
    assert (tmp_path / "c" / "file").read_text() == "text"
    files.delete(str(tmp_path / "c"))
    assert not files.is_exist(str(tmp_path / "c"))
