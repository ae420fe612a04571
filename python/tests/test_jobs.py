"""Strategies by name, and jobs of one and of two workers."""

import copy
import subprocess
import sys
import sysconfig
import os

import numpy as np
import pytest

import fleet as package
from fleet import static
from fleet.distributed import fleet


def test_fields_of_a_strategy(raises):
    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    strategy.amp_configs = {"init_loss_scaling": 1024.0, "custom_white_list": ["conv2d"]}
    assert strategy.amp is True
    assert strategy.amp_configs["init_loss_scaling"] == 1024.0
    assert strategy.amp_configs["decr_ratio"] == pytest.approx(0.8)
    copied = copy.deepcopy(strategy)
    copied.amp = False
    assert strategy.amp and not copied.amp
    assert "amp" in repr(strategy) and "amp_configs" in dir(strategy)

    def assign(name, value):
        return lambda: setattr(strategy, name, value)

    raises(AttributeError, ["ammp", "did you mean"], assign("ammp", True))
    raises(AttributeError, ["recompte"], lambda: strategy.recompte)
    raises(ValueError, ["amp_configs", "decr_ration", "decr_ratio"], assign(
        "amp_configs", {"decr_ration": 0.5}
    ))
    raises(ValueError, ["k_steps"], assign("gradient_merge_configs", {"k_steps": "four"}))
    raises(TypeError, ["amp"], assign("amp", object()))
    with pytest.warns(UserWarning, match="amp"):
        strategy.amp = 3
    assert strategy.amp is True


def test_files_of_a_strategy(tmp_path):
    strategy = fleet.DistributedStrategy()
    strategy.recompute = True
    strategy.recompute_configs = {"checkpoints": ["fc_0.tmp_1"]}
    strategy.save_to_prototxt(tmp_path / "strategy.prototxt")
    other = fleet.DistributedStrategy()
    other.load_from_prototxt(tmp_path / "strategy.prototxt")
    assert other.recompute and other.recompute_configs["checkpoints"] == ["fc_0.tmp_1"]


def test_objects_for_a_strategy(raises):
    build = static.BuildStrategy()
    build.fuse_bn_act_ops = False
    threads = static.ExecutionStrategy()
    threads.num_threads = 2
    strategy = fleet.DistributedStrategy()
    strategy.build_strategy = build
    strategy.execution_strategy = threads
    assert strategy.execution_strategy["num_threads"] == 2
    raises(AttributeError, ["num_thread"], lambda: setattr(threads, "num_thread", 2))
    raises(AttributeError, ["num_thread"], lambda: threads.num_thread)


def network():
    x, y = static.data("x", [None, 4]), static.data("y", [None, 1])
    return package.mean(package.nn.functional.square_error_cost(static.nn.fc(x, 1), y))


def test_a_job_of_one_worker(exe, raises):
    fleet.init(is_collective=True)
    assert fleet.is_worker() and fleet.is_first_worker() and not fleet.is_server()
    assert (fleet.worker_index(), fleet.worker_num(), fleet.server_num()) == (0, 1, 0)
    loss = network()
    strategy = fleet.DistributedStrategy()
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {"k_steps": 2, "avg": True}
    optimizer = package.optimizer.SGD(0.1)
    optimizer = fleet.distributed_optimizer(optimizer, strategy)
    _, pairs = optimizer.minimize(loss)
    assert "GradientMerge" in optimizer.applied_strategies() and len(pairs) == 2
    main, startup = static.default_main_program(), static.default_startup_program()
    xs = np.ones((8, 4), "float32")
    feed = {"x": xs, "y": xs.sum(1, keepdims=True)}
    raises(ValueError, ["startup program"], lambda: exe.run(main, feed=feed))
    exe.run(startup)
    before = main.state_dict("param")
    exe.run(main, feed=feed)
    assert np.array_equal(main.state_dict("param")["fc_0.w_0"], before["fc_0.w_0"])
    losses = [exe.run(main, feed=feed, fetch_list=[loss])[0][0] for _ in range(20)]
    assert losses[-1] < 0.1 * losses[0]
    assert fleet.util.all_reduce([1.0, 2.0]).tolist() == [1.0, 2.0]
    static.nn.fc(main.var("x"), 1)
    raises(ValueError, ["changed after minimize"], lambda: exe.run(main, feed=feed))


def test_a_refused_strategy_names_the_field(raises):
    fleet.init(is_collective=True)
    loss = network()
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"sep_degree": 2}
    optimizer = fleet.distributed_optimizer(package.optimizer.SGD(0.1), strategy)
    refused = (ValueError, NotImplementedError)
    text = raises(refused, ["sep_degree"], lambda: optimizer.minimize(loss))
    assert "test_jobs.py:" in text
    assert static.default_main_program().op_names.count("sgd") == 0


WORKER = """
import numpy as np
import fleet as package
from fleet import static
from fleet.distributed import fleet

fleet.init(is_collective=True)
x, y = static.data("x", [None, 4]), static.data("y", [None, 1])
loss = package.mean(package.nn.functional.square_error_cost(static.nn.fc(x, 1), y))
fleet.distributed_optimizer(package.optimizer.SGD(0.1)).minimize(loss)
exe = static.Executor(threads=1)
exe.run(static.default_startup_program())
xs = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
count = 8 // fleet.worker_num()
mine = xs[fleet.worker_index() * count :][:count]
for _ in range(5):
    exe.run(feed={"x": mine, "y": mine.sum(1, keepdims=True)}, fetch_list=[loss])
total = fleet.util.all_reduce(np.array([1.0]))
assert total.tolist() == [fleet.worker_num()]
w = static.default_main_program().state_dict("param")["fc_0.w_0"]
if fleet.is_first_worker():
    np.save(__import__("sys").argv[1], w)
"""


SHARED_LAYERS = """
import sys
import numpy as np
import fleet as package
from fleet import static
from fleet.distributed import fleet

fleet.init(is_collective=True)
fleet.init(is_collective=True)  # scripts call it again with a strategy
x, y = static.data("x", [None, 4]), static.data("y", [None, 1])
wide = static.nn.fc(x, 8, activation="relu", split="columns")
cost = package.nn.functional.square_error_cost(static.nn.fc(wide, 1, split="rows"), y)
loss = package.mean(cost)
strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"mp_degree": fleet.worker_num()}
fleet.distributed_optimizer(package.optimizer.SGD(0.1), strategy).minimize(loss)
exe = static.Executor(threads=1)
exe.run(static.default_startup_program())
xs = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
feed = {"x": xs, "y": xs.sum(1, keepdims=True)}
losses = [exe.run(feed=feed, fetch_list=[loss])[0][0] for _ in range(5)]
held = static.default_main_program().state_dict("param")
assert held["fc_0.w_0"].shape == (4, 8 // fleet.worker_num())
if fleet.is_first_worker():
    np.save(sys.argv[1], losses)
"""


DIVIDED = """
import sys
import numpy as np
import fleet as package
from fleet import static
from fleet.distributed import fleet

out, kind = sys.argv[1:]
fleet.init(is_collective=True)
workers = fleet.worker_num()
x, y = static.data("x", [None, 4]), static.data("y", [None, 1])
wide = static.nn.fc(x, 8, activation="relu", split="columns")
made = static.nn.fc(wide, 1, split="rows")
loss = package.mean(package.nn.functional.square_error_cost(made, y))
strategy = fleet.DistributedStrategy()
if workers > 1 and kind == "layers":
    strategy.hybrid_configs = {"mp_degree": workers}
if workers > 1 and kind == "sharding":
    strategy.sharding = True
    strategy.sharding_configs = {"stage": 3, "sharding_degree": workers}
if workers > 1 and kind == "pipeline":
    strategy.pipeline = True
    strategy.pipeline_configs = {"accumulate_steps": 2, "micro_batch_size": 4}
fleet.distributed_optimizer(package.optimizer.Adam(0.1), strategy).minimize(loss)
exe = static.Executor(threads=1)
exe.run(static.default_startup_program())
xs = np.random.default_rng(0).standard_normal((8, 4)).astype("float32")
share = slice(fleet.worker_index(), None, workers) if kind == "sharding" else slice(None)
feed = {"x": xs[share], "y": xs[share].sum(1, keepdims=True)}
for _ in range(5):
    exe.run(feed=feed, fetch_list=[loss] if kind != "pipeline" else [])

test = static.default_main_program().clone(for_test=True)
if workers == 1 or kind != "pipeline":
    evaluated = exe.run(test, feed=feed, fetch_list=[made])[0]
    assert evaluated.shape == (len(feed["x"]), 1)
else:
    try:
        exe.run(test, feed=feed, fetch_list=[])
    except Exception as error:
        assert "one stage of the model" in str(error) and "whole_model" in str(error), error
    else:
        raise AssertionError("a stage evaluated alone")
if workers > 1:
    for save in (
        lambda: static.save_vars(exe, out + ".part"),
        lambda: static.save_inference_model(out + ".part", [x], [made], exe),
    ):
        try:
            save()
        except Exception as error:
            assert "workers divide the model" in str(error) or "another stage" in str(error), error
            assert "all workers" in str(error), error
        else:
            raise AssertionError("a part was saved")
fleet.save_persistables(exe, out + ".saved")
fleet.save_inference_model(exe, out + ".model", ["x"], [made])
whole = fleet.whole_model()
assert (whole is None) == (fleet.worker_index() > 0)
if whole is not None:
    with static.scope_guard(whole.scope):
        feed = {"x": xs, "y": xs.sum(1, keepdims=True)}
        results = exe.run(whole.program, feed=feed, fetch_list=[made])[0]
        program, feeds, targets = static.load_inference_model(out + ".model", exe)
        again = exe.run(program, feed={"x": xs}, fetch_list=targets)[0]
        np.testing.assert_array_equal(again, results)
    np.save(out, results)
"""


def trains_alike(tmp_path, text, *args):
    """Checks that a script saves the same numbers alone and as two workers."""
    script = tmp_path / "train.py"
    script.write_text(text)
    fleetrun = os.path.join(sysconfig.get_path("scripts"), "fleetrun")
    results = []
    for name, call in [
        ("one", [sys.executable, script]),
        ("two", [fleetrun, "--nproc_per_node=2", f"--log_dir={tmp_path / 'log'}", script]),
    ]:
        out = tmp_path / f"{name}.npy"
        call = [*call, out, *args]
        ran = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, timeout=120)
        logs = "".join(path.read_text() for path in sorted((tmp_path / "log").glob("*log*")))
        assert ran.returncode == 0, ran.stdout + ran.stderr + logs
        results.append(np.load(out))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-7)


def test_two_workers_train_what_one_trains(tmp_path):
    trains_alike(tmp_path, WORKER)


def test_two_workers_share_layers(tmp_path):
    trains_alike(tmp_path, SHARED_LAYERS)


@pytest.mark.parametrize("kind", ["layers", "sharding", "pipeline"])
def test_a_divided_model_is_evaluated_and_saved_whole(tmp_path, kind):
    trains_alike(tmp_path, DIVIDED, kind)


def test_a_wrong_split_names_the_choices(raises):
    x = static.data("x", [None, 4])
    wrong = lambda: static.nn.fc(x, 8, split="all")
    raises(TypeError, ["split", "'columns', 'rows' or None"], wrong)
    attr = package.ParamAttr(split="first")
    raises(TypeError, ["split", "an axis"], lambda: static.nn.fc(x, 8, weight_attr=attr))


def test_fleetrun_is_the_launcher():
    fleetrun = os.path.join(sysconfig.get_path("scripts"), "fleetrun")
    ran = subprocess.run([fleetrun, "--help"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and "--nproc_per_node" in ran.stdout
    wrong = subprocess.run([fleetrun, "no_such.py"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode != 0 and "no_such.py" in wrong.stderr


def test_the_launcher_is_a_module(tmp_path):
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['PADDLE_TRAINER_ID'])")
    call = [sys.executable, "-m", "fleet.distributed.launch", "--nproc_per_node=2", "train.py"]
    ran = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ran.returncode == 0, ran.stderr
    logs = "".join(path.read_text() for path in sorted((tmp_path / "log").glob("*log*")))
    assert "rank 0" in ran.stdout + logs and "rank 1" in ran.stdout + logs


def test_a_worker_that_raises_ends_the_job(tmp_path):
    script = "from fleet.distributed import fleet\nfleet.init(is_collective=True)\n"
    script += "if fleet.worker_index() == 1:\n    raise KeyError('broken')\nfleet.barrier_worker()\n"
    (tmp_path / "train.py").write_text(script)
    fleetrun = os.path.join(sysconfig.get_path("scripts"), "fleetrun")
    call = [fleetrun, "--nproc_per_node=2", "train.py"]
    ran = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ran.returncode != 0
    logs = "".join(path.read_text() for path in sorted((tmp_path / "log").glob("*log*")))
    assert "KeyError" in ran.stdout + ran.stderr + logs
