"""Operators of variables, with numbers, arrays and indices."""

import numpy as np
import pytest

import fleet
from fleet import fluid, static


def texts():
    programs = static.default_main_program(), static.default_startup_program()
    return [program.to_string() for program in programs]


def test_arrays_are_no_operands(raises):
    x = static.data("x", [None, 3])
    before = texts()
    array = np.ones(1000, "float32")
    for call in [lambda: array * x, lambda: x + array, lambda: array == x, lambda: x != array]:
        raises(TypeError, ["a Variable or a number", "ndarray"], call)
    for call in [lambda: np.asarray(x), lambda: np.add(array, x), lambda: float(x)]:
        with pytest.raises(TypeError):
            call()
    raises(TypeError, ["has no value while the program is written"], lambda: np.asarray(x))
    assert texts() == before
    assert (np.float32(2.0) * x).shape == (-1, 3)


def test_operators_with_a_number_on_the_left(exe):
    x = static.data("x", [None, 3])
    n = static.data("n", [3], "int64")
    made = [2.0**x, 7.0 % x, 7.0 // x, 2**n, 7 % n, fleet.maximum(1.5, x), np.float64(2) ** x]
    xs, ns = np.array([[1.0, 2.0, 3.0]], "float32"), np.array([1, 2, 5])
    out = exe.run(feed={"x": xs, "n": ns}, fetch_list=made)
    wanted = [2.0**xs, 7.0 % xs, 7.0 // xs, 2**ns, 7 % ns, np.maximum(1.5, xs), 2.0**xs]
    for got, value in zip(out, wanted):
        np.testing.assert_allclose(got, value)


def test_large_integers_are_exact(exe, raises):
    n = static.data("n", [2], "int64")
    sums = [n + 2**53, 2**62 - n, n * 2**40]
    out = exe.run(feed={"n": np.array([1, 3])}, fetch_list=sums)
    assert [a.tolist() for a in out] == [
        [2**53 + 1, 2**53 + 3],
        [2**62 - 1, 2**62 - 3],
        [2**40, 3 * 2**40],
    ]
    before = texts()
    for call in [
        lambda: n + 2**70,
        lambda: n < 2**53 + 1,
        lambda: n < 0.5,
        lambda: n == float("nan"),
        lambda: fleet.full([1], 2**70, "int64"),
        lambda: fleet.full([1], 2**53 + 1, "int64"),
        lambda: fleet.full([1], float("nan"), "int64"),
        lambda: fleet.full([1], 2**2000),
        lambda: fleet.full_like(n, float("inf")),
        lambda: fleet.arange(0, 2**70, 2**69),
        lambda: static.create_global_var([1], 300, "uint8"),
    ]:
        raises(ValueError, ["expected a"], call)
    raises(ValueError, ["full(): fill_value", "exact", "2**53"], lambda: fleet.full([1], 2**53 + 1))
    raises(ValueError, ["less_than(): y", "int64", "astype"], lambda: n < 0.5)
    assert texts() == before


def test_equality_is_an_op(exe, raises):
    scores = static.data("scores", [None, 3])
    label = static.data("label", [None], "int64")
    predicted = fleet.argmax(scores, 1)
    right = fleet.mean(fleet.cast(predicted == label, "float32"))
    wrong = fleet.sum(fleet.cast(predicted != label, "int64"))
    ones = fleet.cast(1 == label, "int64")
    feed = {"scores": np.eye(3, dtype="float32"), "label": np.array([0, 1, 1])}
    out = exe.run(feed=feed, fetch_list=[right, wrong, ones])
    assert [a.tolist() for a in out] == [[pytest.approx(2 / 3)], [1], [0, 1, 1]]
    # Variables are themselves in lists and dictionaries.
    before = texts()
    main = static.default_main_program()
    assert main.var("label") is label and label in [label] and {label: 1}[main.var("label")] == 1
    assert (label == None) is False and (label != "label") is True  # noqa: E711
    assert texts() == before
    with pytest.raises(TypeError) as caught:
        if label == predicted:
            pass
    assert "has no value" in str(caught.value) and "`is`" in str(caught.value)


def test_indices(exe, raises):
    x = static.data("x", [None, 3, 2])
    xs = np.arange(24.0, dtype="float32").reshape(4, 3, 2)
    indices = [
        0,
        -1,
        -2,
        np.int64(1),
        (slice(None), 0),
        (slice(1, 3), np.int32(-1), slice(None, None, 2)),
        (Ellipsis, 1),
        (0, Ellipsis, 1),
        None,
        (slice(None), None, 1),
        (0, 1, None),
        (1, 2, 1),
        (1, 2, 1, None),
        slice(np.int64(1), None),
    ]
    made = [x[index] for index in indices]
    out = exe.run(feed={"x": xs}, fetch_list=made)
    for index, got, var in zip(indices, out, made):
        wanted = np.atleast_1d(xs[index])
        assert np.array_equal(got, wanted), index
        assert len(var.shape) == wanted.ndim, index
        assert all(one in (-1, other) for one, other in zip(var.shape, wanted.shape)), index
    assert x[...] is x and x[:] is x
    before = texts()
    raises(TypeError, ["an integer, a slice", "True"], lambda: x[True])
    raises(TypeError, ["an integer, a slice", "gather"], lambda: x[[0, 1]])
    raises(TypeError, ["an integer, a slice", "gather"], lambda: x[x])
    raises(TypeError, ["an integer, a slice", "1.5"], lambda: x[1.5:])
    raises(IndexError, ["index 3", "dimension 1"], lambda: x[0, 3])
    raises(IndexError, ["4 indices"], lambda: x[0, 0, 0, 0])
    raises(IndexError, ["ellipsis"], lambda: x[..., ...])
    assert texts() == before


def test_an_index_beyond_the_batch_is_an_error_of_the_run(exe, raises):
    x = static.data("x", [None, 3])
    row = x[5]
    feed = {"x": np.zeros((2, 3), "float32")}
    raises(ValueError, ["slice", "axis 0"], lambda: exe.run(feed=feed, fetch_list=[row]))


def test_gradients_of_a_row(exe):
    x = static.data("x", [None, 3])
    x.stop_gradient = False
    (grad,) = static.gradients([fleet.sum(x[0])], [x])
    out = exe.run(feed={"x": np.ones((2, 3), "float32")}, fetch_list=[grad])
    assert out[0].tolist() == [[1.0] * 3, [0.0] * 3]


def test_calls_of_several_layers_fail_as_one(raises):
    ids = static.data("ids", [None, 1], "int64")
    loss = fleet.mean(static.nn.fc(static.data("x", [None, 3]), 1))
    before = texts()
    raises(ValueError, ["embedding"], lambda: fluid.layers.embedding(ids, [0, 4]))
    assert texts() == before
    raises(TypeError, ["momentum"], lambda: broken().minimize(loss))
    assert texts() == before


def broken():
    """An optimizer whose updates fail after the backward pass."""
    made = fleet.optimizer.Momentum(0.1)
    made._numbers["momentum"] = "fast"
    return made
