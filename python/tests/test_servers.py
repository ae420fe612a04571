"""Jobs with parameter servers, as users write them: each is one script for servers and workers."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

import fleet as package
from fleet import static
from fleet.distributed import fleet
from fleet.distributed.fleet.utils.ps_util import DistributedInfer
from jobs import Jobs

#: A network with a table of rows, and its data: every id has a number, and y is the sum of two.
NETWORK = """
import os
import sys

import numpy as np

import fleet as package
from fleet import static
from fleet.distributed import fleet


def network():
    ids, y = static.data("ids", [None, 2], "int64"), static.data("y", [None, 1])
    start = package.nn.initializer.Uniform(-0.5, 0.5)
    table = package.ParamAttr(name="table", initializer=start)
    rows = static.nn.sparse_embedding(ids, [50, 4], param_attr=table)
    out = static.nn.fc(package.flatten(rows, 1), 1)
    loss = package.mean(package.nn.functional.square_error_cost(out, y))
    return out, loss


def batch(rng, size=8):
    ids = rng.integers(0, 50, (size, 2))
    return {"ids": ids, "y": (ids % 5 - 2).sum(1, keepdims=True).astype("float32")}


TESTED = batch(np.random.default_rng(1), 64)
"""

#: Trains in the mode of its first argument, and writes to the folder of its second.
TRAIN = """
from network import *

mode, folder = sys.argv[1:]
fleet.init()
out, loss = network()
test = static.default_main_program().clone(for_test=True)
strategy = fleet.DistributedStrategy()
strategy.a_sync = mode != "sync"
if mode == "geo":
    strategy.a_sync_configs = {"k_steps": 4}
optimizer = fleet.distributed_optimizer(package.optimizer.SGD(0.1), strategy)
optimizer.minimize(loss)
trained_test = static.default_main_program().clone(for_test=True)
if fleet.is_server():
    assert not fleet.is_worker() and fleet.server_index() == 0
    fleet.init_server()
    fleet.run_server()
else:
    exe = static.Executor(threads=1)
    exe.run(static.default_startup_program())
    fleet.init_worker()
    me, count = fleet.worker_index(), fleet.worker_num()
    assert fleet.is_worker() and fleet.is_first_worker() == (me == 0)
    if count == 2:
        assert fleet.server_num() == len(fleet.server_endpoints()) == 1
        assert len(fleet.worker_endpoints(to_string=True).split(",")) == 2
        assert fleet.metrics.acc(np.array([me + 1.0]), np.array([4.0])) == 3 / 8
        assert fleet.metrics.max(np.array([[me, -me]])).tolist() == [[1, 0]]
        assert fleet.util.all_gather(me) == [0, 1]

    def tested(program):
        return exe.run(program, feed=TESTED, fetch_list=[loss.name, out])

    before = tested(test)[0]
    rng = np.random.default_rng(0)
    for step in range(100):
        feed = batch(rng)
        if mode == "sync":
            feed = {name: np.split(value, count)[me] for name, value in feed.items()}
        exe.run(feed=feed, fetch_list=[loss.name])
    fleet.barrier_worker()
    after, values = tested(test)
    assert after < 0.5 * before, (before, after)
    if mode == "sync":
        np.testing.assert_array_equal(values, tested(trained_test)[1])
    if me == 0:
        np.save(f"{folder}/values.npy", values)
        np.save(f"{folder}/weight.npy", static.global_scope()["fc_0.w_0"])
    fleet.save_persistables(exe, f"{folder}/saved")
    fleet.save_persistables(f"{folder}/base", mode=1)
    fleet.barrier_worker()
    if mode != "async":
        fleet.stop_worker()
    # A worker of the asynchronous job forgets it.
"""

#: Continues on other servers with what `TRAIN` has saved.
RESUME = """
from network import *

saved, folder = sys.argv[1:]
fleet.init()
out, loss = network()
test = static.default_main_program().clone(for_test=True)
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
fleet.distributed_optimizer(package.optimizer.SGD(0.1), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server(saved)
    fleet.run_server()
else:
    exe = static.Executor(threads=1)
    exe.run(static.default_startup_program())
    if fleet.is_first_worker():
        static.load_vars(exe, saved, vars=["fc_0.w_0", "fc_0.b_0"])
    fleet.init_worker()
    tested = lambda: exe.run(test, feed=TESTED, fetch_list=[out])[0]
    loaded = tested()
    exe.run(feed=batch(np.random.default_rng(3)))
    trained = tested()
    assert not np.array_equal(loaded, trained)
    fleet.load_model(saved)
    np.testing.assert_array_equal(loaded, tested())
    np.save(f"{folder}/loaded{fleet.worker_index()}.npy", loaded)
    fleet.barrier_worker()
    fleet.stop_worker()
"""

#: Infers from what `TRAIN` has saved, without training.
INFER = """
from network import *
from fleet.distributed.fleet.utils.ps_util import DistributedInfer

saved, folder = sys.argv[1:]
out, loss = network()
exe = static.Executor(threads=1)
infer = DistributedInfer(static.default_main_program(), static.default_startup_program())
infer.init_distributed_infer_env(exe, loss, dirname=saved)
if fleet.is_worker():
    program = infer.get_dist_infer_program()
    assert "distributed_lookup_table" in str(program)
    (values,) = exe.run(program, feed=TESTED, fetch_list=[out])
    np.save(f"{folder}/inferred.npy", values)
    fleet.stop_worker()
"""


@pytest.fixture
def jobs(tmp_path):
    jobs = Jobs(tmp_path)
    jobs.write("network.py", NETWORK)
    return jobs


def train(jobs, mode, folder):
    folder.mkdir()
    jobs.write("train.py", TRAIN)
    jobs.succeeds(jobs.servers("train.py", mode, folder))


def test_synchronous_workers_train_like_one_process_and_continue(jobs, tmp_path):
    two, one = tmp_path / "two", tmp_path / "one"
    train(jobs, "sync", two)
    one.mkdir()
    jobs.succeeds(jobs.alone("train.py", "sync", one))
    for name in ["values.npy", "weight.npy"]:
        np.testing.assert_allclose(np.load(two / name), np.load(one / name), rtol=1e-5, atol=1e-5)
    jobs.write("resume.py", RESUME)
    jobs.succeeds(jobs.servers("resume.py", two / "saved", tmp_path, servers=2))
    for worker in range(2):
        values = np.load(tmp_path / f"loaded{worker}.npy")
        np.testing.assert_allclose(values, np.load(two / "values.npy"), rtol=1e-6, atol=1e-6)
    jobs.write("infer.py", INFER)
    jobs.succeeds(jobs.servers("infer.py", two / "saved", tmp_path, workers=1))
    values = np.load(tmp_path / "inferred.npy")
    np.testing.assert_allclose(values, np.load(two / "values.npy"), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_workers_train_without_each_other(jobs, tmp_path, mode):
    train(jobs, mode, tmp_path / "out")
    assert (tmp_path / "out" / "base" / "tables.txt").exists()


WIDE_DEEP = """
import sys

import numpy as np

import fleet as package
from fleet import static
from fleet.distributed import fleet

sys.path.insert(0, sys.argv[1])
from models import wide_deep

fleet.init()
loss = wide_deep()
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
strategy.a_sync_configs = {"send_queue_size": 1}
optimizer = fleet.distributed_optimizer(
    package.optimizer.Adam(1e-3), strategy, rows=package.optimizer.Adagrad(0.1)
)
optimizer.minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = static.Executor(threads=1)
    exe.run(static.default_startup_program())
    fleet.init_worker()
    rng = np.random.default_rng(fleet.worker_index())
    losses = []
    for step in range(40):
        ids = rng.integers(0, 40, (64, 26)) * 25000
        feed = {
            "dense_input": rng.standard_normal((64, 13)).astype("float32"),
            "sparse_input": ids,
            "label": (ids[:, :1] % 2000000 < 500000).astype("float32"),
        }
        losses += exe.run(feed=feed, fetch_list=[loss.name])
    first, last = np.mean(losses[:5]), np.mean(losses[-5:])
    assert last < 0.8 * first, (first, last)
    fleet.stop_worker()
"""


def test_wide_and_deep(jobs):
    jobs.write("wide_deep.py", WIDE_DEEP)
    jobs.succeeds(jobs.servers("wide_deep.py", Path(__file__).parent))


#: A job whose first argument says what goes wrong.
FAIL = """
import signal

from network import *

what = sys.argv[1]
fleet.init()
out, loss = network()
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
fleet.distributed_optimizer(package.optimizer.SGD(0.1), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server(durable=what == "server_dies" and "kept" or None)
    with open("server", "w") as file:
        file.write(str(os.getpid()))
    fleet.run_server()
else:
    exe = static.Executor(threads=1)
    exe.run(static.default_startup_program())
    fleet.init_worker()
    rng = np.random.default_rng(0)
    for step in range(20):
        if step == 5 and fleet.worker_index() == 1:
            if what == "worker_raises":
                raise KeyError("broken")
            os.kill(int(open("server").read()), signal.SIGKILL)
        exe.run(feed=batch(rng))
    fleet.stop_worker()
    print("all steps made")
"""


def test_a_worker_that_raises_ends_the_job(jobs):
    jobs.write("fail.py", FAIL)
    ran = jobs.servers("fail.py", "worker_raises")
    assert ran.returncode == 1 and "KeyError" in ran.stderr + ran.stdout + jobs.logs()
    assert "all steps made" not in jobs.logs()


def test_a_durable_server_that_dies_resumes(jobs):
    jobs.write("fail.py", FAIL)
    jobs.succeeds(jobs.servers("fail.py", "server_dies"))
    assert jobs.logs().count("all steps made") == 2


def test_scripts_that_only_build_a_network_end_well(jobs):
    script = TRAIN.split("if fleet.is_server():")[0] + "print(fleet.is_server())\n"
    jobs.write("build.py", script)
    jobs.succeeds(jobs.servers("build.py", "sync", ".", workers=1))
    assert "True" in jobs.logs() and "False" in jobs.logs()


GROUPS = """
from fleet.distributed import fleet

fleet.init()
name = "server" if fleet.is_server() else "worker"
assert fleet.util.all_reduce(2, comm_world="all") == 2 * 3
assert fleet.util.all_gather(fleet.is_server(), comm_world="all") == [False, False, True]
assert fleet.util.all_reduce(1.5, "max", name) == 1.5
try:
    fleet.util.barrier("worker" if fleet.is_server() else "server")
except ValueError as error:
    assert name in str(error), error
    print("refused", flush=True)
fleet.util.barrier("all")
"""


def test_groups_with_servers(jobs):
    jobs.write("groups.py", GROUPS)
    jobs.succeeds(jobs.servers("--with_gloo=2", "groups.py"))
    assert jobs.logs().count("refused") == 3


def test_the_script_of_the_page(jobs):
    page = Path(__file__).parents[2] / "docs" / "python.md"
    section = page.read_text().split("\n## Parameter servers\n")[1].split("\n## ")[0]
    (script,) = [it for it in re.findall(r"```python\n(.*?)```", section, re.S) if "init(" in it]
    jobs.write("train.py", script)
    ran = jobs.succeeds(jobs.servers("train.py"))
    losses = [float(it) for it in re.findall(r"loss ([0-9.]+)", ran.stdout)]
    assert len(losses) > 1 and losses[-1] < 0.5 * losses[0]


# In one process


def network(entry=None):
    ids, y = static.data("ids", [None, 2], "int64"), static.data("y", [None, 1])
    table = package.ParamAttr(name="table")
    rows = static.nn.sparse_embedding(ids, [50, 4], param_attr=table, entry=entry)
    out = static.nn.fc(package.flatten(rows, 1), 1)
    return out, package.mean(package.nn.functional.square_error_cost(out, y))


FEED = {"ids": np.array([[1, 2], [3, 4]]), "y": np.ones((2, 1), "float32")}


def minimized(strategy=None, entry=None):
    fleet.init()
    out, loss = network(entry)
    if strategy is None:
        strategy = fleet.DistributedStrategy()
        strategy.a_sync = False
    fleet.distributed_optimizer(package.optimizer.SGD(0.1), strategy).minimize(loss)
    return out, loss


def test_order_of_calls(exe, raises, tmp_path):
    main, startup = static.default_main_program(), static.default_startup_program()
    fleet.init()
    assert (fleet.worker_index(), fleet.worker_num(), fleet.server_num()) == (0, 1, 0)
    assert fleet.is_worker() and fleet.is_first_worker() and not fleet.is_server()
    assert fleet.server_endpoints() == [] and fleet.server_endpoints(to_string=True) == ""
    raises(ValueError, ["minimize"], fleet.init_worker)
    raises(ValueError, ["minimize"], fleet.init_server)
    _, loss = minimized()
    raises(ValueError, ["startup program"], fleet.init_worker)
    raises(ValueError, ["not a server", "init_worker"], fleet.init_server)
    raises(ValueError, ["not a server", "worker"], fleet.run_server)
    raises(ValueError, ["startup program"], lambda: exe.run(main, feed=FEED))
    exe.run(startup)
    raises(ValueError, ["fleet.init_worker"], lambda: exe.run(main, feed=FEED))
    raises(ValueError, ["joined"], lambda: fleet.save_persistables(exe, tmp_path / "saved"))
    fleet.init_worker()
    raises(ValueError, ["already"], fleet.init_worker)
    raises(ValueError, ["startup program cannot run again"], lambda: exe.run(startup))
    losses = [exe.run(main, feed=FEED, fetch_list=[loss.name])[0] for _ in range(20)]
    assert losses[-1] < losses[0]
    raises(ValueError, ["no_such"], lambda: exe.run(main, feed=FEED, fetch_list=["no_such"]))
    raises(ValueError, ["save mode", "got 7"], lambda: fleet.save_persistables("saved", mode=7))
    raises(TypeError, ["dirname"], lambda: fleet.save_persistables(exe))
    raises(ValueError, ["'table'", "tables"], lambda: fleet.save_one_table("tables", "one"))
    raises(NotImplementedError, ["save_persistables"], lambda: fleet.save_cache_model("saved"))
    raises(NotImplementedError, ["scopes"], lambda: fleet.init_worker(scopes=[]))
    raises(ValueError, ["with_gloo"], lambda: fleet.util.barrier("server"))
    fleet.stop_worker()
    fleet.stop_worker()
    raises(ValueError, ["left the job"], lambda: exe.run(main, feed=FEED))
    test = main.clone(for_test=True)
    raises(ValueError, ["table", "init_worker"], lambda: exe.run(test, feed=FEED))
    assert "fc_0.w_0" in static.global_scope()


def test_saves_of_one_process(exe, raises, tmp_path):
    out, loss = minimized()
    exe.run(static.default_startup_program())
    fleet.init_worker()
    for _ in range(3):
        exe.run(feed=FEED)
    test = static.default_main_program().clone(for_test=True)
    (trained,) = exe.run(test, feed=FEED, fetch_list=[out])
    fleet.save_persistables(exe, tmp_path / "saved")
    fleet.save_persistables(exe, tmp_path / "text", format="text")
    fleet.save_one_table("table", tmp_path / "table")
    fleet.save_inference_model(exe, tmp_path / "model", ["ids"], [out])
    exe.run(feed=FEED)
    assert not np.array_equal(exe.run(test, feed=FEED, fetch_list=[out])[0], trained)
    for save in ["saved", "model"]:
        fleet.load_model(tmp_path / save)
        np.testing.assert_array_equal(exe.run(test, feed=FEED, fetch_list=[out])[0], trained)
    fleet.load_model(tmp_path / "text")
    (read,) = exe.run(test, feed=FEED, fetch_list=[out])
    np.testing.assert_allclose(read, trained, rtol=1e-4)
    fleet.load_one_table("table", tmp_path / "table")
    fleet.shrink(30)
    program, feeds, (target,) = static.load_inference_model(tmp_path / "model" / "model", exe)
    assert feeds == ["ids"] and target.name == out.name
    raises(ValueError, ["threshold"], lambda: fleet.shrink(1000))
    raises(ValueError, ["no save in", "nowhere"], lambda: fleet.load_model(tmp_path / "nowhere"))
    fleet.stop_worker()


def test_a_saved_model_serves_in_one_process(exe, raises, tmp_path):
    out, loss = minimized()
    exe.run(static.default_startup_program())
    fleet.init_worker()
    for _ in range(3):
        exe.run(feed=FEED)
    fleet.save_inference_model(exe, tmp_path / "model", ["ids"], [out])
    test = static.default_main_program().clone(for_test=True)
    (trained,) = exe.run(test, feed=FEED, fetch_list=[out])
    with pytest.raises(ValueError, match="fleet.save_inference_model"):
        static.save_inference_model(tmp_path / "bare", ["ids"], [out], exe)
    assert not (tmp_path / "bare").exists()
    for _ in range(3):
        exe.run(feed=FEED)
    feed = {"ids": FEED["ids"]}
    for folder in ["model", "model/model"]:
        with static.scope_guard(static.Scope()):
            program, feeds, targets = static.load_inference_model(tmp_path / folder, exe)
            for runs in [program, program.clone(for_test=True), program.clone()]:
                (served,) = exe.run(runs, feed=feed, fetch_list=targets)
                np.testing.assert_array_equal(served, trained)
            # An id without a row reads as zeros.
            far = {"ids": np.full_like(FEED["ids"], 10**9)}
            (unknown,) = exe.run(program, feed=far, fetch_list=targets)
            bias = np.full_like(unknown, static.global_scope()["fc_0.b_0"])
            np.testing.assert_array_equal(unknown, bias)
            table = package.io.from_table(feed, [program.var("ids")], batch_size=4)
            exe.infer_from_dataset(program, table)
            with pytest.raises(ValueError, match="fleet.save_inference_model"):
                static.save_inference_model(tmp_path / "bare", ["ids"], targets, exe, program)
    # The worker reads its tables as before.
    assert not np.array_equal(exe.run(test, feed=FEED, fetch_list=[out])[0], trained)
    fleet.stop_worker()


def test_a_pass_ends_with_all_gradients_applied(exe, tmp_path):
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    minimized(strategy)
    test = static.default_main_program().clone(for_test=True)
    exe.run(static.default_startup_program())
    fleet.init_worker()
    many = {name: np.tile(value, (50, 1)) for name, value in FEED.items()}
    inputs = [static.default_main_program().var(name) for name in FEED]
    table = package.io.from_table(many, inputs, batch_size=len(FEED["ids"]))
    bias, scope = "fc_0.b_0", static.global_scope()
    for number in range(5):
        exe.train_from_dataset(dataset=table)
        trained = scope[bias]
        fleet.save_persistables(exe, tmp_path / str(number))
        np.testing.assert_array_equal(trained, scope[bias])
    for number in range(5):
        for _ in range(20):
            exe.run(feed=FEED)
        exe.infer_from_dataset(test, table)
        seen = scope[bias]
        fleet.save_persistables(exe, tmp_path / str(number))
        np.testing.assert_array_equal(seen, scope[bias])
    fleet.stop_worker()


def test_integers_of_workers_are_exact_or_refused(exe, raises):
    fleet.init()
    exact = np.array([2**53 - 1, 1 - 2**53, 7])
    for call in [fleet.util.all_reduce, fleet.metrics.sum, lambda x: fleet.util.all_gather(x)[0]]:
        made = call(exact)
        assert made.dtype == exact.dtype and made.tolist() == exact.tolist()
        for wrong in [2**53, -(2**53), 2**63]:
            array = np.array([0, wrong], "uint64" if wrong == 2**63 else "int64")
            raises(ValueError, ["below 2**53", str(wrong)], lambda: call(array))
        assert call(np.array([1e300])).tolist() == [1e300]
    raises(TypeError, ["numbers"], lambda: fleet.util.all_reduce("many"))


def test_arguments_of_saves_are_checked(exe, raises, tmp_path):
    out, loss = minimized()
    exe.run(static.default_startup_program())
    fleet.init_worker()
    main, other = static.default_main_program(), static.Program()
    folder = tmp_path / "saved"

    def model(feeds=("ids",), targets=(out,), program=None, dirname=folder):
        return lambda: fleet.save_inference_model(exe, dirname, list(feeds), targets, program)

    raises(ValueError, ["garbage"], model(feeds=["garbage"]))
    raises(ValueError, ["feed_vars", out.name], model(feeds=[out.name]))
    raises(TypeError, ["7"], model(feeds=[7]))
    raises(ValueError, ["garbage"], model(targets=["garbage"]))
    raises(TypeError, ["'garbage'", "Program"], model(program="garbage"))
    raises(ValueError, ["dirname"], model(dirname=""))
    raises(TypeError, ["dirname"], model(dirname=b"x"))
    for save in ["garbage", 1.5, True]:
        raises(TypeError, ["main_program"], lambda: fleet.save_persistables(exe, folder, save))
    raises(ValueError, ["main_program"], lambda: fleet.save_persistables(exe, folder, other))
    raises(TypeError, ["path"], lambda: fleet.save_one_table("table", b"x"))
    raises(ValueError, ["path"], lambda: fleet.load_model(""))
    assert not folder.exists()
    for program in [None, main, main.clone(for_test=True)]:
        model(program=program)()
        fleet.save_persistables(exe, folder, program)
    fleet.stop_worker()


def test_a_worker_that_fails_to_join_may_retry(exe, raises):
    minimized()
    exe.run(static.default_startup_program())
    scope = static.global_scope()
    weight = scope["fc_0.w_0"]
    scope.erase(["fc_0.w_0"])
    names = list(scope)
    for _ in range(2):
        raises(ValueError, ["fc_0.w_0"], fleet.init_worker)
        assert list(scope) == names
    scope._cell.set("fc_0.w_0", weight, "float32")
    fleet.init_worker()
    exe.run(feed=FEED)
    fleet.stop_worker()


def test_a_fetch_handler_cannot_run_the_executor(exe):
    errors = []

    class Handler(static.FetchHandler):
        def handler(self, values):
            for call in [exe.run, lambda: static.global_scope()["fc_0.b_0"], fleet.stop_worker]:
                try:
                    call()
                except RuntimeError as error:
                    errors.append(str(error))

    out, loss = minimized()
    exe.run(static.default_startup_program())
    fleet.init_worker()
    inputs = [static.default_main_program().var(name) for name in FEED]
    table = package.io.from_table(FEED, inputs, batch_size=4)
    exe.train_from_dataset(dataset=table, fetch_handler=Handler({"loss": loss}))
    assert len(errors) >= 3 and not any("another thread" in error for error in errors)
    assert all("fetch handler" in error for error in errors)
    fleet.stop_worker()


def test_inference_on_a_network_of_its_own(exe, raises):
    out, loss = minimized()
    exe.run(static.default_startup_program())
    fleet.init_worker()
    exe.run(feed=FEED)
    test = static.default_main_program().clone(for_test=True)
    (expected,) = exe.run(test, feed=FEED, fetch_list=[out])
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), package.utils.unique_name.guard():
        scores, _ = network()
        two = static.create_global_var([1], 2.0, "float32", persistable=True, name="two")
        double = scores * two
    program = DistributedInfer(main, startup).get_dist_infer_program()
    values, doubled = exe.run(program, feed=FEED, fetch_list=[scores, double])
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(doubled, 2 * expected)
    assert static.global_scope()["two"].tolist() == [2.0]
    # An id that no worker has seen reads as zeros.
    unseen = {**FEED, "ids": np.array([[40, 41], [40, 41]])}
    bias = static.global_scope()["fc_0.b_0"]
    np.testing.assert_allclose(exe.run(program, feed=unseen, fetch_list=[scores])[0], [bias, bias])
    with static.program_guard(static.Program(), static.Program()):
        network()
        static.nn.fc(static.data("more", [None, 3]), 1, weight_attr=package.ParamAttr(name="new"))
        infer = DistributedInfer()
        raises(ValueError, ["was not trained", "unique_name"], infer.get_dist_infer_program)
    fleet.stop_worker()


def test_strategies_and_entries(exe, raises):
    strategy = fleet.DistributedStrategy()
    raises(AttributeError, ["a_synk", "a_sync"], lambda: setattr(strategy, "a_synk", True))
    wrong = {"k_step": 3}
    raises(ValueError, ["k_step", "k_steps"], lambda: setattr(strategy, "a_sync_configs", wrong))
    strategy.gradient_merge = True
    strategy.gradient_merge_configs = {"k_steps": 2}
    raises((ValueError, NotImplementedError), ["gradient_merge"], lambda: minimized(strategy))
    entry = package.distributed.CountFilterEntry(2)
    programs = static.program_guard(static.Program(), static.Program())
    with programs, package.utils.unique_name.guard():
        out, _ = minimized(entry=entry)
        exe.run(static.default_startup_program())
        fleet.init_worker()
        bias = static.global_scope()["fc_0.b_0"]
        # No id was seen twice yet, so that all rows read as zeros.
        (values,) = exe.run(feed=FEED, fetch_list=[out])
        np.testing.assert_allclose(values, [bias, bias])
        exe.run(feed=FEED)
        (values,) = exe.run(feed=FEED, fetch_list=[out])
        assert not np.allclose(values[0], values[1])
        fleet.stop_worker()


def test_mixed_precision(exe, raises):
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = False
    strategy.amp = True
    strategy.amp_configs = {"init_loss_scaling": 256.0, "use_fp16_guard": False}
    fleet.init(strategy=strategy)
    strategy.amp = False
    _, loss = network()
    optimizer = fleet.distributed_optimizer(package.optimizer.SGD(0.1))
    assert optimizer.user_defined_strategy.amp, "the strategy of init"
    optimizer.minimize(loss)
    raises(ValueError, ["startup program"], optimizer.get_loss_scaling)
    exe.run(static.default_startup_program())
    optimizer.amp_init()
    fleet.init_worker()
    exe.run(feed=FEED)
    assert fleet.get_loss_scaling() == 256.0 and fleet.resume() == 0
    raises(NotImplementedError, ["clone"], lambda: fleet.amp_init(use_fp16_test=True))
    fleet.stop_worker()
    programs = static.program_guard(static.Program(), static.Program())
    with programs, static.scope_guard(static.Scope()):
        minimized()
        exe.run(static.default_startup_program())
        raises(ValueError, ["mixed precision"], fleet.amp_init)
        assert fleet.get_loss_scaling() is None


def test_a_rate_of_python(exe, raises):
    rate = package.optimizer.lr.LambdaDecay(0.1, lambda step: 1.0 if step < 2 else -1.0)
    loss = package.mean(static.nn.fc(static.data("x", [None, 2]), 1))
    package.optimizer.SGD(rate).minimize(loss)
    exe.run(static.default_startup_program())
    feed = {"x": np.ones((1, 2), "float32")}
    exe.run(feed=feed)
    exe.run(feed=feed)
    raises(ValueError, ["invalid learning rate", "at least 0"], lambda: exe.run(feed=feed))


def test_roles(raises, monkeypatch):
    cloud = fleet.PaddleCloudRoleMaker()
    assert cloud._is_worker() and cloud._is_first_worker() and cloud._is_non_distributed()
    assert not cloud._is_heter_worker() and not cloud._is_server()
    assert (cloud._worker_num(), cloud._server_num(), cloud._role_id()) == (1, 0, 0)
    raises(TypeError, ["role_maker"], lambda: fleet.init("worker"))
    raises(ValueError, ["is_collective"], lambda: fleet.init(cloud, is_collective=True))
    servers = ["127.0.0.1:4001", "127.0.0.1:4002"]
    described = {"role": fleet.Role.SERVER, "worker_num": 2, "server_endpoints": servers}
    monkeypatch.setenv("FLEET_OPEN", "loopback")
    server = fleet.UserDefinedRoleMaker(current_id=1, **described)
    assert server._is_server() and server._server_index() == 1 and server._worker_num() == 2
    assert server._get_pserver_endpoints() == servers
    wrong = fleet.UserDefinedRoleMaker(current_id=2, **described)
    raises(ValueError, ["current_id", "got 2"], lambda: fleet.init(wrong))
    wrong = fleet.UserDefinedRoleMaker(server_endpoints=["127.0.0.1:port"])
    raises(ValueError, ["server_endpoints", "127.0.0.1:port"], lambda: fleet.init(wrong))
    raises(TypeError, ["worker_num"], lambda: fleet.UserDefinedRoleMaker(worker_num="2"))
    monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:4001")
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "1")
    monkeypatch.setenv("TRAINING_ROLE", "FOO")
    raises(ValueError, ["TRAINING_ROLE", "PSERVER", "FOO"], fleet.init)
    monkeypatch.setenv("TRAINING_ROLE", "COORDINATOR")
    raises(NotImplementedError, ["coordinators", "--worker_num"], fleet.init)
    monkeypatch.setenv("TRAINING_ROLE", "TRAINER")
    raises(ValueError, ["PADDLE_TRAINER_ID"], fleet.init)
    monkeypatch.delenv("PADDLE_PSERVERS_IP_PORT_LIST")
    raises(ValueError, ["role", "7"], lambda: fleet.init(fleet.UserDefinedRoleMaker(role=7)))


def test_a_server_that_does_not_listen(exe, raises, monkeypatch):
    monkeypatch.setenv("FLEET_OPEN", "loopback")
    roles = fleet.UserDefinedRoleMaker(server_endpoints=["127.0.0.1:1"])
    fleet.init(roles)
    _, loss = network()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync_configs = {"launch_barrier": False}
    fleet.distributed_optimizer(package.optimizer.SGD(0.1), strategy).minimize(loss)
    exe.run(static.default_startup_program())
    for _ in range(2):
        raises(RuntimeError, ["127.0.0.1:1"], fleet.init_worker)
        assert "fc_0.w_0" in static.global_scope()


def test_collective_jobs_have_no_servers(exe, raises):
    fleet.init(is_collective=True)
    loss = package.mean(static.nn.fc(static.data("x", [None, 2]), 1))
    fleet.distributed_optimizer(package.optimizer.SGD(0.1)).minimize(loss)
    exe.run(static.default_startup_program())
    raises(ValueError, ["no parameter servers"], fleet.init_worker)
    raises(ValueError, ["no parameter servers"], fleet.init_server)
    raises(NotImplementedError, ["mode"], lambda: fleet.save_persistables(exe, "saved", mode=1))
    assert not os.path.exists("saved")
