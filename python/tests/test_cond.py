"""`static.nn.cond`: programs, results and gradients of branches, and mistakes in them."""

import os
import pathlib

import numpy as np
import pytest

import fleet
from fleet import fluid, static
from fleet.nn import functional as F

PROGRAM = pathlib.Path(__file__).parents[2] / "tests" / "filetests" / "nn" / "cond.fleet"


def texts():
    main, startup = static.default_main_program(), static.default_startup_program()
    return main.to_string(), startup.to_string()


def test_it_writes_the_program_of_rust():
    """The network is that of `filetests_branches_with_several_results` in fleet-nn."""
    x = static.data("x", [None, 3])
    stem = static.nn.fc(x, 3, activation="tanh")

    def then():
        return static.nn.fc(static.nn.fc(stem, 4, activation="relu"), 2), fleet.mean(stem)

    def otherwise():
        twice = stem * stem + stem
        far = fleet.sum(stem) < -1.0
        inner = static.nn.cond(
            far,
            lambda: static.nn.fc(twice, 2),
            lambda: fleet.tanh(static.nn.fc(twice * 3.0, 2)),
        )
        return inner, fleet.sum(stem)

    first, second = static.nn.cond(fleet.mean(stem) > 0.0, then, otherwise)
    loss = fleet.mean(fleet.square(first + fleet.mean(stem))) + second * 0.1
    fleet.optimizer.SGD(0.1).minimize(loss)
    main, startup = texts()
    assert f"# startup\n{startup}\n# main\n{main}" == PROGRAM.read_text()


def test_results_and_gradients_are_those_of_the_branch_that_runs(exe):
    x = static.data("x", [None, 2])
    x.stop_gradient = False
    total = fleet.sum(x)
    (made,) = static.nn.cond(total > 0.0, lambda: [x * 3.0], lambda: [fleet.square(x)])
    (gradient,) = static.gradients([fleet.sum(made)], [x])
    for rows, result, slope in [
        ([[1.0, 2.0]], [[3.0, 6.0]], [[3.0, 3.0]]),
        ([[-1.0, -2.0]], [[1.0, 4.0]], [[-2.0, -4.0]]),
    ]:
        out = exe.run(feed={"x": np.array(rows, "float32")}, fetch_list=[made, gradient])
        np.testing.assert_allclose(out[0], result)
        np.testing.assert_allclose(out[1], slope)


def test_it_trains_the_parameters_of_the_branch(exe):
    x, y = static.data("x", [None, 1]), static.data("y", [None, 1])
    out = fluid.layers.cond(
        fleet.mean(x) > 0.0,
        lambda: static.nn.fc(x, 1, name="positive"),
        lambda: static.nn.fc(x, 1, name="negative"),
    )
    loss = F.mse_loss(out, y)
    fleet.optimizer.SGD(0.1).minimize(loss)
    exe.run(static.default_startup_program())
    ones = np.ones((4, 1), "float32")
    for _ in range(200):
        exe.run(feed={"x": ones, "y": 2 * ones})
        exe.run(feed={"x": -ones, "y": 5 * ones})
    for sign, wanted in [(1, 2.0), (-1, 5.0)]:
        test = static.default_main_program().clone(for_test=True)
        (value,) = exe.run(test, feed={"x": sign * ones, "y": ones}, fetch_list=[out])
        np.testing.assert_allclose(value, wanted * ones, rtol=1e-3)


def test_forms_of_results(exe):
    x = static.data("x", [None, 2])
    positive = fleet.mean(x) > 0.0
    state = static.create_global_var([1], 0.0, "float32", persistable=True, name="state")

    def count():
        fleet.assign(state + 1.0, output=state)

    assert static.nn.cond(positive, count, None) is None
    assert static.nn.cond(positive) is None
    nested = static.nn.cond(
        positive, lambda: (x, [x + 1.0, None]), lambda: (x * 2.0, [x - 1.0, None])
    )
    assert isinstance(nested, tuple) and isinstance(nested[1], list) and nested[1][1] is None
    named = static.nn.cond(positive, lambda: x, lambda: -x, name="choice")
    assert named.name.startswith("choice.")
    exe.run(static.default_startup_program())
    feed = {"x": np.full((1, 2), 1.0, "float32")}
    out = exe.run(feed=feed, fetch_list=[nested[0], nested[1][0], named])
    assert [value[0, 0] for value in out] == [1.0, 2.0, 1.0]
    exe.run(feed={"x": -feed["x"]})
    assert static.global_scope()["state"] == 1.0


def line_of(text):
    lines = open(__file__).read().splitlines()
    return f"{os.path.basename(__file__)}:{1 + next(n for n, at in enumerate(lines) if text in at)}"


def test_mistakes_have_the_line_of_the_script(raises):
    x = static.data("x", [None, 3])
    positive = fleet.mean(x) > 0.0
    scalar = fleet.sum(x)
    whole, each = fleet.cast(x, "int64"), x > 0.0
    before = texts()
    nothing = lambda: None  # noqa: E731
    cond = static.nn.cond
    differ = "result 0 of cond differs between branches"
    cases = [
        (ValueError, ["different numbers of results", "expected 1", "got 0", "[1]"],
         lambda: cond(positive, lambda: x, nothing)),  # [1]
        (ValueError, ["different numbers of results", "expected 0", "got 1", "[2]"],
         lambda: cond(positive, None, lambda: x)),  # [2]
        (ValueError, [differ, "f32[-1, 3] from both", "got f32[1]", "[3]"],
         lambda: cond(positive, lambda: x, lambda: scalar)),  # [3]
        (ValueError, [differ, "f32[-1, 3] from both", "got i64[-1, 3]", "[4]"],
         lambda: cond(positive, lambda: x, lambda: whole)),  # [4]
        (ValueError, ["invalid condition of cond", "one boolean", "got bool[-1, 3]", "[5]"],
         lambda: cond(each, lambda: x, lambda: x)),  # [5]
        (ValueError, ["wrong size of fc", "[6]"],
         lambda: cond(positive, lambda: static.nn.fc(x, 0), lambda: x)),  # [6]
        (ValueError, ["forms", "expected [a Variable] from both", "got a Variable"],
         lambda: cond(positive, lambda: [x], lambda: x)),
        (TypeError, ["pred: expected a Variable, got True"], lambda: cond(True, nothing)),
        (TypeError, ["true_fn: expected a function"], lambda: cond(positive, x, nothing)),
        (TypeError, ["result of false_fn", "got 3", "fleet.full"],
         lambda: cond(positive, lambda: x, lambda: 3)),
        (TypeError, ["name: expected a string"], lambda: cond(positive, nothing, name=3)),
        (ValueError, ["minimize the program after the call of cond"], lambda: cond(
            positive, lambda: fleet.optimizer.SGD(0.1).minimize(scalar) and None)),
    ]
    for kind, parts, call in cases:
        marks = [part for part in parts if part.startswith("[") and part[1:-1].isdigit()]
        texts_of = [part for part in parts if part not in marks]
        places = [line_of(f"# {mark}") for mark in marks]
        raises(kind, texts_of + places, call)
        assert texts() == before, parts
    with static.program_guard(static.Program()):
        raises(ValueError, ["pred", "belongs to another program"], lambda: cond(positive, nothing))


def test_an_exception_in_a_branch_leaves_the_programs_as_they_were(exe, raises):
    x = static.data("x", [None, 3])
    positive = fleet.mean(x) > 0.0
    before, kept = texts(), []

    def fails():
        kept.append(F.dropout(static.nn.fc(x, 4), 0.5))
        static.nn.cond(positive, lambda: kept.append(static.nn.fc(x, 4)) and None)
        raise KeyError("mine")

    for wrong in [lambda: (fails, None), lambda: (None, fails)]:
        raises(KeyError, ["mine"], lambda: static.nn.cond(positive, *wrong()))
        assert texts() == before
    # Variables of the branch do not turn into others.
    y = static.nn.cond(positive, lambda: static.nn.fc(x, 2), lambda: static.nn.fc(x, 2))
    for stale in kept:
        raises(ValueError, ["does not have this variable"], lambda: fleet.mean(stale))
    exe.run(static.default_startup_program())
    (value,) = exe.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[y])
    assert value.shape == (2, 2)


def test_a_program_with_an_open_branch_is_not_used(exe, raises, tmp_path):
    x = static.data("x", [None, 3])
    main = static.default_main_program()
    feed = {"x": np.ones((2, 3), "float32")}

    def branch():
        open_branch = ["a branch of cond", "after the call of cond"]
        raises(ValueError, open_branch, lambda: exe.run(feed=feed))
        raises(ValueError, open_branch, lambda: main.clone())
        raises(ValueError, open_branch, lambda: static.save_vars(exe, str(tmp_path), main))
        # Another program is as usual.
        with static.program_guard(static.Program(), static.Program()):
            y = static.nn.fc(static.data("x", [None, 3]), 1)
            assert y.program.op_names == ["mul", "elementwise_add"]
        return x * 2.0

    y = static.nn.cond(fleet.mean(x) > 0.0, branch, lambda: x)
    (value,) = exe.run(feed=feed, fetch_list=[y])
    assert value[0, 0] == 2.0


def test_what_a_branch_makes_is_not_used_outside(exe, raises):
    x = static.data("x", [None, 3])
    kept = []
    static.nn.cond(fleet.mean(x) > 0.0, lambda: kept.append(x * 2.0))
    feed = {"x": np.ones((2, 3), "float32")}
    raises(ValueError, ["cannot be fetched"], lambda: exe.run(feed=feed, fetch_list=kept))


@pytest.mark.parametrize("name", ["case", "switch_case", "while_loop"])
def test_other_branches_tell_the_alternative(raises, name):
    raises(NotImplementedError, [name, "help:"], lambda: getattr(static.nn, name))
