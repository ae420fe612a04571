"""Arrays in and out, scopes, and errors of runs."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import fleet
from fleet import static


def identity(dtype, shape):
    x = static.data("x", shape, dtype)
    return fleet.assign(x)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
)
def test_arrays_of_every_type_and_layout(exe, dtype):
    y = identity(dtype, [None, None])
    base = np.arange(12).reshape(3, 4) % 2 if dtype == "bool" else np.arange(12).reshape(3, 4)
    array = base.astype(dtype)
    swapped = array.astype(array.dtype.newbyteorder())
    read_only = array.copy()
    read_only.flags.writeable = False
    for given in [array, array.T, array[:, ::2], array[::-1], swapped, read_only]:
        out = exe.run(feed={"x": given}, fetch_list=[y])[0]
        assert out.dtype == np.dtype(dtype)
        assert np.array_equal(out, given)


def test_a_fetched_array_is_its_own(exe):
    y = identity("float32", [None])
    feed = {"x": np.ones(4, "float32")}
    first = exe.run(feed=feed, fetch_list=[y])[0]
    first[:] = 7
    feed["x"][:] = 2
    assert exe.run(feed=feed, fetch_list=[y])[0].tolist() == [2, 2, 2, 2]
    assert first.tolist() == [7, 7, 7, 7]


def test_numbers_and_lists_are_converted(exe, raises):
    y = identity("float32", [None])
    assert exe.run(feed={"x": [1, 2.5]}, fetch_list=[y])[0].tolist() == [1, 2.5]
    scalar = identity_of("s", "int32", [])
    assert exe.run(feed={"x": [0.0], "s": 7}, fetch_list=[scalar])[0] == 7
    zero_d = np.array(7, "int32")
    assert exe.run(feed={"x": [0.0], "s": zero_d}, fetch_list=[scalar])[0].shape == ()


def identity_of(name, dtype, shape):
    return fleet.assign(static.data(name, shape, dtype))


@pytest.mark.parametrize(
    "value, parts",
    [
        (np.zeros((2, 3), "float64"), ["'x'", "expected float32", "float64", "astype"]),
        (np.zeros((2, 4), "float32"), ["'x'", "wrong type or shape", "[2, 4]"]),
        (np.zeros((2, 3), "float32").astype(object), ["'x'", "object"]),
        ([[1.0, 2.0, 3.0], [1.0]], ["'x'", "ragged"]),
        (["a", "b"], ["'x'"]),
        (None, ["'x'"]),
        ([[2**70, 1, 1]], ["'x'"]),
        ([[1e300, 1, 1]], ["'x'", "too large"]),
        (np.zeros((0, 3), "complex64"), ["'x'", "complex64"]),
    ],
)
def test_wrong_feeds(exe, raises, value, parts):
    y = identity("float32", [None, 3])
    raises(ValueError, parts, lambda: exe.run(feed={"x": value}, fetch_list=[y]))


def test_huge_integers(exe, raises):
    y = identity("int64", [None])
    assert exe.run(feed={"x": [2**62]}, fetch_list=[y])[0][0] == 2**62
    for wrong in [2**63, 2**70, -(2**64)]:
        raises(ValueError, ["'x'"], lambda: exe.run(feed={"x": [wrong]}, fetch_list=[y]))
    small = identity_of("b", "int8", [None])
    feed = {"x": [1], "b": [300]}
    raises(ValueError, ["'b'"], lambda: exe.run(feed=feed, fetch_list=[small]))


def test_wrong_calls(exe, raises):
    y = identity("float32", [None, 3])
    x = np.zeros((1, 3), "float32")
    run = exe.run
    raises(ValueError, ["'z'"], lambda: run(feed={"z": x}, fetch_list=[y]))
    raises(ValueError, ["'yy'"], lambda: run(feed={"x": x}, fetch_list=["yy"]))
    raises(ValueError, ["no value was fed for 'x'"], lambda: run(feed={}, fetch_list=[y]))
    raises(TypeError, ["feed"], lambda: run(feed=[x], fetch_list=[y]))
    raises(TypeError, ["fetch_list"], lambda: run(feed={"x": x}, fetch_list=[3]))
    raises(TypeError, ["program"], lambda: run("main"))
    raises(NotImplementedError, ["use_prune"], lambda: run(use_prune=True))
    static.nn.fc(static.default_main_program().var("x"), 1)
    out = ["fc_0.tmp_1"]
    text = raises(ValueError, ["fc_0.w_0"], lambda: run(feed={"x": x}, fetch_list=out))
    assert "startup" in text
    # The executor goes on after errors.
    assert exe.run(static.default_startup_program()) == []
    assert run(feed={"x": x}, fetch_list=out)[0].shape == (1, 1)
    exe.close()
    raises(RuntimeError, ["closed"], lambda: run(feed={"x": x}))


def test_scopes(exe, raises):
    static.nn.fc(static.data("x", [None, 3]), 2)
    exe.run(static.default_startup_program())
    scope = static.global_scope()
    assert sorted(scope) == ["fc_0.b_0", "fc_0.w_0"] and len(scope) == 2
    tensor = scope.find_var("fc_0.w_0").get_tensor()
    tensor.set(np.full((3, 2), 2.0, "float32"), static.CPUPlace())
    assert np.array_equal(np.array(tensor), np.full((3, 2), 2.0))
    assert scope.find_var("nothing") is None
    raises(ValueError, ["no variable 'fc_0.w'", "fc_0.w_0"], lambda: scope["fc_0.w"])
    wrong = np.zeros((2, 2), "float32")
    raises(ValueError, ["fc_0.w_0", "[3, 2]"], lambda: tensor.set(wrong))
    with static.scope_guard(static.Scope()):
        assert len(static.global_scope()) == 0


def test_state_dicts(exe, raises):
    loss = fleet.mean(static.nn.fc(static.data("x", [None, 3]), 2))
    fleet.optimizer.Adam(0.1).minimize(loss)
    main = static.default_main_program()
    exe.run(static.default_startup_program())
    before = main.state_dict()
    assert sorted(main.state_dict("param")) == ["fc_0.b_0", "fc_0.w_0"]
    assert "fc_0.w_0_moment1_0" in main.state_dict("opt")
    exe.run(feed={"x": np.ones((4, 3), "float32")})
    assert not np.array_equal(main.state_dict()["fc_0.w_0"], before["fc_0.w_0"])
    main.set_state_dict(before)
    assert np.array_equal(main.state_dict()["fc_0.w_0"], before["fc_0.w_0"])
    wrong = {"fc_0.b_0": np.ones(2, "float32"), "fc_0.w_0": np.ones(7, "float32")}
    raises(ValueError, ["'fc_0.w_0'", "[3, 2]"], lambda: main.set_state_dict(wrong))
    assert np.array_equal(main.state_dict()["fc_0.b_0"], before["fc_0.b_0"])
    raises(ValueError, ["'fc_0.w'"], lambda: main.set_state_dict({"fc_0.w": [1.0]}))


def test_saves_and_models(exe, tmp_path, raises):
    x = static.data("x", [None, 3])
    y = static.nn.fc(x, 2, activation="softmax")
    fleet.optimizer.Adam(0.1).minimize(fleet.mean(y))
    main, startup = static.default_main_program(), static.default_startup_program()
    main.random_seed = startup.random_seed = 3
    exe.run(startup)
    before = main.state_dict()
    for name in ["folder", "vars.npz", "vars.safetensors"]:
        fleet.fluid.io.save_persistables(exe, tmp_path / name, main)
        exe.run(startup)
        fleet.fluid.io.load_persistables(exe, tmp_path / name, main)
        for var, value in main.state_dict().items():
            assert np.array_equal(value, before[var]), (name, var)
    assert {"fc_0.b_0", "fc_0.w_0"} <= set(np.load(tmp_path / "vars.npz").files)
    static.save_vars(exe, tmp_path / "some", main, vars=["fc_0.w_0"])
    static.load_vars(exe, tmp_path / "some", main, predicate=lambda var: var.name == "fc_0.w_0")
    raises(ValueError, ["fc_0.b_0"], lambda: static.load_vars(exe, tmp_path / "some", main))

    feed = {"x": np.ones((4, 3), "float32")}
    test = main.clone(for_test=True)
    expected = exe.run(test, feed=feed, fetch_list=[y])[0]
    static.save_inference_model(tmp_path / "model", [x], [y], exe)
    with static.scope_guard(static.Scope()):
        program, feeds, targets = static.load_inference_model(tmp_path / "model", exe)
        assert feeds == ["x"]
        assert np.array_equal(exe.run(program, feed=feed, fetch_list=targets)[0], expected)
    raises(ValueError, [str(tmp_path)], lambda: static.load_inference_model(tmp_path / "no", exe))


def test_threads_run_side_by_side(raises):
    """A run does not hold the interpreter's lock, and one executor is for one thread."""
    x = static.data("x", [None, 256])
    y = x
    for _ in range(8):
        y = fleet.matmul(y, fleet.full([256, 256], 0.01))
    main = static.default_main_program()
    feed = {"x": np.ones((4096, 256), "float32")}
    executors = [static.Executor(threads=1) for _ in range(2)]
    outs, errors = [], []

    def work(executor, scope):
        try:
            for _ in range(3):
                outs.append(executor.run(main, feed=feed, fetch_list=[y], scope=scope)[0])
        except RuntimeError as error:
            errors.append(str(error))

    def together(pairs):
        threads = [threading.Thread(target=work, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    together([(executor, static.Scope()) for executor in executors])
    assert not errors and len(outs) == 6
    assert all(np.array_equal(out, outs[0]) for out in outs)
    assert len(set(map(id, outs))) == 6
    together([(executors[0], static.Scope()) for _ in range(2)])
    # The threads may also have taken turns.
    assert all("executor is running" in error for error in errors)


def test_evaluations_leave_random_numbers_alone(exe):
    x = static.data("x", [None, 100])
    y = fleet.nn.functional.dropout(x, 0.5)
    main = static.default_main_program()
    test = main.clone(for_test=True)
    feed = {"x": np.ones((1, 100), "float32")}

    def drawn(evaluations):
        with static.scope_guard(static.Scope()):
            first = exe.run(main, feed=feed, fetch_list=[y])[0]
            for _ in range(evaluations):
                assert np.array_equal(exe.run(test, feed=feed, fetch_list=[y])[0], feed["x"])
            return first, exe.run(main, feed=feed, fetch_list=[y])[0]

    (first, second), (_, after) = drawn(0), drawn(3)
    assert not np.array_equal(first, second)
    assert np.array_equal(second, after)


FORK = """
import os
import numpy as np
import fleet
from fleet import static

y = fleet.assign(static.data("x", [None]))
exe = static.Executor(threads=2)
feed = {"x": np.ones(3, "float32")}
exe.run(feed=feed, fetch_list=[y])
if os.fork() == 0:
    try:
        exe.run(feed=feed, fetch_list=[y])
    except RuntimeError as error:
        assert "fork" in str(error)
        # A new one works.
        assert static.Executor(threads=2).run(feed=feed, fetch_list=[y])[0].shape == (3,)
        raise SystemExit(7)
    raise SystemExit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""


def test_a_fork_has_no_executor():
    call = [sys.executable, "-W", "ignore", "-c", FORK]
    ran = subprocess.run(call, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_an_mlp_learns_digits(exe):
    """Images of ten classes, each a noisy copy of its own pattern."""
    image = static.data("image", [None, 784])
    label = static.data("label", [None, 1], "int64")
    hidden = static.nn.fc(image, 128, activation="relu")
    logits = static.nn.fc(fleet.nn.functional.dropout(hidden, 0.1), 10)
    loss = fleet.nn.functional.cross_entropy(logits, label)
    accuracy = static.accuracy(logits, label)
    test = static.default_main_program().clone(for_test=True)
    fleet.optimizer.Adam(learning_rate=1e-3).minimize(loss)
    exe.run(static.default_startup_program())
    rng = np.random.default_rng(7)
    patterns = rng.standard_normal((10, 784))

    def batch():
        labels = rng.integers(0, 10, (64, 1))
        images = patterns[labels[:, 0]] + 2.0 * rng.standard_normal((64, 784))
        return {"image": images.astype("float32"), "label": labels}

    for _ in range(60):
        exe.run(feed=batch(), fetch_list=[loss])
    out = exe.run(test, feed=batch(), fetch_list=[accuracy])
    assert out[0][0] > 0.9


def test_feeds_are_exact_or_refused(exe, raises):
    x, n = static.data("x", [None]), static.data("n", [None], "int64")
    y, m = fleet.scale(x, 1.0), fleet.cast(n, "int64")

    def run(name, value, fetch):
        return exe.run(feed={name: value}, fetch_list=[fetch])[0].tolist()

    assert run("x", [2**24, 0.1, True], y) == [2**24, np.float32(0.1), 1.0]
    assert run("n", [2**63 - 1, -(2**63)], m) == [2**63 - 1, -(2**63)]
    assert run("n", [3.0], m) == [3]
    for name, value, parts in [
        ("x", [2**24 + 1], ["float32", "16777217", "not exact"]),
        ("x", [1, -(2**24) - 1], ["-16777217", "not exact"]),
        ("x", [1e39], ["1e+39", "too large"]),
        ("x", [None], ["got None"]),
        ("x", [10**40], ["too large", str(10**40)]),
        ("x", [10**5000], ["too large"]),
        ("x", [object()], ["(object), which is not a number"]),
        ("x", ["1.5"], ["'1.5' (str), which is not a number"]),
        ("x", [1j], ["not a number"]),
        ("x", [[1], [1, 2]], ["ragged", "pad"]),
        ("n", [2**63], ["int64", str(2**63)]),
        ("n", [0.5], ["int64", "0.5"]),
        ("n", [float("nan")], ["int64", "nan"]),
        ("x", np.array([1.0]), ["float64", "astype"]),
        ("x", np.array(["a"]), ["array of numbers"]),
        ("x", np.ma.array([1.0, 2.0], "float32", mask=[True, False]), ["masked", "filled"]),
    ]:
        raises(ValueError, [f"'{name}'", *parts], lambda: run(name, value, y if name == "x" else m))


def test_wrong_integers_and_paths_are_named(exe, raises, tmp_path):
    x = static.data("x", [None])
    table = fleet.io.from_table({"x": np.ones(4)}, [x])
    for parts, call in [
        (["threads", "0 to 4096"], lambda: static.Executor(threads=10**30)),
        (["thread", "0 to 4096"], lambda: exe.infer_from_dataset(dataset=table, thread=10**30)),
        (["print_period"], lambda: exe.infer_from_dataset(dataset=table, print_period=-1)),
        (["batch_size", "1 or more"], lambda: fleet.io.from_table({}, [x], batch_size=-1)),
        (["seed"], lambda: fleet.io.from_table({}, [x], seed=-1)),
        (["seed"], lambda: fleet.seed(-1)),
        (["seed"], lambda: fleet.seed(2**64)),
        (["dirname"], lambda: static.save_vars(exe, "")),
    ]:
        raises(ValueError, parts, call)
    for parts, call in [
        (["threads", "integer"], lambda: static.Executor(threads=True)),
        (["threads", "integer"], lambda: static.Executor(threads=1.5)),
        (["seed", "integer"], lambda: fleet.seed("1")),
        (["dirname", "b'x'"], lambda: static.save_vars(exe, b"x")),
        (["dirname", "None"], lambda: static.save_vars(exe, None)),
        (["main_program"], lambda: static.save_vars(exe, tmp_path / "saved", "garbage")),
    ]:
        raises(TypeError, parts, call)
    fleet.seed(np.int64(7))


def test_binary_cross_entropy_of_logits(exe, raises):
    x, y = static.data("x", [None, 1]), static.data("y", [None, 1])
    of = fleet.nn.functional.binary_cross_entropy_with_logits
    whole, each = of(x, y), of(x, y, weight=y + 1.0, reduction="none")
    logits, labels = np.array([[0.5], [-2.0]], "float32"), np.array([[1.0], [0.0]], "float32")
    loss = np.log1p(np.exp(-logits)) * labels + np.log1p(np.exp(logits)) * (1 - labels)
    found = exe.run(feed={"x": logits, "y": labels}, fetch_list=[whole, each])
    np.testing.assert_allclose(found[0], [loss.mean()], rtol=1e-5)
    np.testing.assert_allclose(found[1], loss * (labels + 1), rtol=1e-5)
    raises(NotImplementedError, ["pos_weight"], lambda: of(x, y, pos_weight=y))
    raises(ValueError, ["reduction"], lambda: of(x, y, reduction="avg"))
