"""Arguments of any kind give a result or an ordinary exception, never a panic."""

import random

import numpy as np
import pytest

import fleet
from fleet import _fleet, fluid, static
from fleet.nn import functional

pytestmark = pytest.mark.filterwarnings("ignore")

#: Exceptions that a wrong argument may have.
ORDINARY = (TypeError, ValueError, RuntimeError, IndexError, AttributeError, OverflowError)


def ordinary(error):
    """Fails for a panic of Rust, which is a `RuntimeError` too."""
    assert "internal error" not in str(error), error


VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    7,
    2**31,
    -(2**63),
    2**63,
    2**70,
    0.5,
    -0.5,
    float("nan"),
    float("inf"),
    1e300,
    "",
    "x",
    "relu",
    "float32",
    "int64",
    "NHWC",
    "SAME",
    "sum",
    "\ud800",
    "a\nb",
    [],
    [0],
    [1, 2],
    [-1, 1],
    [2**40, 2**40],
    [0, 0, 0, 0],
    [1] * 20,
    [None, 3],
    (1, -1),
    {},
    {"a": 1},
    b"bytes",
    np.float32(2.0),
    np.int64(3),
    np.zeros((2, 2), "float32"),
    np.array(["a"], dtype=object),
    object(),
    int,
    fleet.ParamAttr(name="w"),
    fleet.ParamAttr(learning_rate="fast"),
    fleet.nn.initializer.Uniform("a", None),
    fleet.nn.initializer.Assign([1.0, 2.0]),
    fleet.distributed.CountFilterEntry(-1),
]


def variables():
    return [
        static.data("f1", [None, 8]),
        static.data("f4", [None, 3, 8, 8]),
        static.data("i1", [None, 1], "int64"),
        static.data("b0", [1], "bool"),
        static.data("s", []),
        static.data("k", [4, 4]),
    ]


def functions():
    for module in [fleet, static, static.nn, functional, fluid.layers]:
        for name, value in sorted(vars(module).items()):
            if callable(value) and getattr(value, "__module__", "") == module.__name__:
                if not isinstance(value, type) and not name.startswith("_"):
                    yield value


def parameters(function):
    code = getattr(function, "__wrapped__", function).__code__
    return code.co_varnames[: code.co_argcount]


@pytest.mark.parametrize("seed", range(4))
def test_layers(seed):
    rng = random.Random(seed)
    made = 0
    for function in functions():
        if function in (fleet.disable_static, static.cpu_places):
            continue
        with static.program_guard(static.Program(), static.Program()):
            inputs = variables()
            for _ in range(25):
                args = {}
                for index, name in enumerate(parameters(function)):
                    roll = rng.random()
                    if roll < (0.8 if index == 0 else 0.25):
                        args[name] = rng.choice(inputs)
                    elif roll < 0.6 or index < 3:
                        args[name] = rng.choice(VALUES)
                try:
                    function(**args)
                    made += 1
                except ORDINARY as error:
                    ordinary(error)
            str(static.default_main_program())
    assert made > 300


def constants(x, value):
    """Calls that make a constant of the type of `x`, and what they make of ones."""
    return [
        (lambda: fleet.full([1], value, x.dtype), lambda: value),
        (lambda: fleet.full_like(x, value), lambda: value),
        (lambda: fluid.layers.fill_constant([1], x.dtype, value), lambda: value),
        (lambda: fleet.maximum(x, value), lambda: max(1, value)),
        (lambda: x + value, lambda: 1 + value),
        (lambda: value - x, lambda: value - 1),
        (lambda: x * value, lambda: value),
        (lambda: x < value, lambda: 1 < value),
        (lambda: value <= x, lambda: value <= 1),
        (lambda: x == value, lambda: value == 1),
        (lambda: x != value, lambda: value != 1),
    ]


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_constants_of_integers_are_exact_or_refused(exe, dtype):
    x = static.data("x", [1], dtype)
    bits = int(dtype[3:]) - 1
    edges = [2**31 - 1, -(2**31), 2**40, 2**53, 2**53 + 1, 2**53 + 2, 2**62, 2**63 - 1, 2**63]
    values = edges + [value for value in VALUES if isinstance(value, (int, float))]
    done = refused = 0
    for value in [*values, np.int64(2**53 + 1), np.float32(2.0)]:
        for call, expected in constants(x, value):
            try:
                made = call()
            except ValueError:
                refused += 1
                continue
            wanted = expected()
            (got,) = exe.run(feed={"x": np.ones(1, dtype)}, fetch_list=[made])
            if got.dtype.kind == "i":
                # A fraction is cut. A sum may leave the type, as in NumPy.
                if -(2**bits) <= wanted < 2**bits:
                    assert got.item() == int(wanted), (value, made)
                    done += 1
            elif got.dtype.kind == "b":
                assert got.item() == bool(wanted), (value, made)
                done += 1
    assert done > 100 and refused > 50


def test_optimizers_and_strategies():
    rng = random.Random(5)
    classes = [value for value in vars(fleet.optimizer).values() if isinstance(value, type)]
    classes += [value for value in vars(fleet.optimizer.lr).values() if isinstance(value, type)]
    for kind in classes:
        for _ in range(40):
            count = rng.randrange(5)
            try:
                made = kind(*[rng.choice(VALUES) for _ in range(count)])
                if not hasattr(made, "minimize"):
                    made = fleet.optimizer.SGD(made)
                with static.program_guard(static.Program(), static.Program()):
                    x = static.data("x", [None, 4])
                    made.minimize(fleet.mean(static.nn.fc(x, 2)))
            except ORDINARY as error:
                ordinary(error)
    strategy = fleet.distributed.fleet.DistributedStrategy()
    for name in [*_fleet.StrategyCell.names(), "", ".", "amp.", "a.b.c", "\ud800"]:
        for value in VALUES:
            for given in (value, {"k_steps": value}, [value]):
                try:
                    setattr(strategy, name, given)
                except ORDINARY as error:
                    ordinary(error)
    assert repr(strategy)


def test_feeds_and_programs(exe):
    x = static.data("x", [None, 3])
    y = fleet.assign(x)
    for value in VALUES:
        for feed in [{"x": value}, {value: 1} if value.__hash__ else None, value]:
            for fetch in [[y], value, [value]]:
                try:
                    exe.run(feed=feed, fetch_list=fetch)
                except ORDINARY as error:
                    ordinary(error)
    text = str(static.default_main_program())
    rng = random.Random(9)
    for _ in range(300):
        at = rng.randrange(len(text))
        changed = text[:at] + rng.choice("%:{}[](),-9x\n") + text[at + rng.randrange(3) :]
        try:
            str(static.Program.parse(changed))
        except ORDINARY as error:
            ordinary(error)


def test_jobs(exe, tmp_path, monkeypatch):
    from fleet.distributed import fleet as jobs

    monkeypatch.chdir(tmp_path)
    jobs.init()
    rows = static.nn.sparse_embedding(static.data("ids", [None, 1], "int64"), [9, 4])
    loss = fleet.mean(static.nn.fc(fluid.layers.flatten(rows), 1))
    rng = random.Random(7)

    def called(function, count):
        for _ in range(count):
            try:
                function(*[rng.choice(VALUES) for _ in range(rng.randrange(5))])
            except ORDINARY as error:
                ordinary(error)

    # Nothing that ends the job.
    names = "init_server run_server save_persistables save_inference_model load_model shrink".split()
    names += "save_one_table load_one_table server_endpoints worker_endpoints".split()
    functions = [getattr(jobs, name) for name in names]
    functions += [value for value in vars(jobs.metrics).values() if callable(value)]
    functions += [getattr(jobs.util, name) for name in dir(jobs.util) if name[0] != "_"]
    called(lambda *args: jobs.distributed_optimizer(*args).minimize(loss), 40)
    jobs.distributed_optimizer(fleet.optimizer.SGD(0.1)).minimize(loss)
    exe.run(static.default_startup_program())
    jobs.init_worker()
    for function in functions:
        called(function, 40)
    for value in VALUES:
        for name in ["role", "current_id", "worker_num", "worker_endpoints", "server_endpoints"]:
            try:
                jobs.UserDefinedRoleMaker(**{name: value})._is_worker()
            except ORDINARY as error:
                ordinary(error)
    exe.run(feed={"ids": np.zeros((2, 1), "int64")}, fetch_list=[loss])
    jobs.stop_worker()
