"""Parameters of functions that the documents' interface has."""

import numpy as np

import fleet
from fleet import fluid, static
from fleet.nn import functional


def test_results_of_options(exe):
    x, y = static.data("x", [2, 3]), static.data("y", [2, 3])
    values, indices = fleet.topk(x, 1, axis=0, largest=False, sorted=True)
    made = {
        "operator": x @ fleet.transpose(y, [1, 0]),
        "matmul": fluid.layers.matmul(x, y, False, True, 0.5),
        "scale": fleet.scale(x, 2.0, 1.0, False),
        "scale_act": fleet.scale(x, 2.0, -5.0, act="relu"),
        "topk": values,
        "indices": indices,
        "argmax": fleet.argmax(x, 1, keepdim=True),
        "argmin": fleet.argmin(x),
        "gather": fleet.gather(x, fleet.argmax(x, 0), axis=1),
        "equal": fleet.equal(x, 2.0, name="e"),
    }
    xs = np.array([[1.0, 5.0, 2.0], [4.0, 0.0, 3.0]], "float32")
    out = exe.run(feed={"x": xs, "y": xs + 1}, fetch_list=list(made.values()))
    got = dict(zip(made, out))
    wanted = {
        "operator": xs @ (xs + 1).T,
        "matmul": 0.5 * xs @ (xs + 1).T,
        "scale": 2.0 * (xs + 1.0),
        "scale_act": np.maximum(2.0 * xs - 5.0, 0.0),
        "topk": xs.min(0, keepdims=True),
        "indices": xs.argmin(0)[None],
        "argmax": xs.argmax(1)[:, None],
        "argmin": np.array([xs.argmin()]),
        "gather": xs[:, xs.argmax(0)],
        "equal": xs == 2.0,
    }
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)


def test_names_of_results():
    x = static.data("x", [None, 3, 1])
    index = static.data("index", [2], "int64")
    made = [
        fleet.squeeze(x, 2, name="n"),
        fleet.unsqueeze(x, [0], name="n"),
        fleet.topk(x, 1, name="n")[0],
        fleet.equal(x, 1.0, name="n"),
        fleet.maximum(x, x, name="n"),
        fleet.gather(x, index, name="n"),
        fleet.split(x, 3, axis=1, name="n")[0],
        fleet.split(x, [1, 2], axis=1, name="n")[0],
        fleet.argmax(x, 1, name="n"),
        fleet.logical_not(fleet.equal(x, x), name="n"),
    ]
    assert all(var.name.startswith("n.") for var in made), made


def test_losses_of_probabilities(exe, raises):
    x = static.data("x", [None, 3])
    label = static.data("label", [None, 1], "int64")
    probabilities = functional.softmax(x)
    losses = [
        functional.cross_entropy(x, label),
        functional.cross_entropy(probabilities, label, use_softmax=False),
        functional.cross_entropy(x, label, None, -100, "sum"),
        functional.cross_entropy(probabilities, label, reduction="sum", use_softmax=False),
    ]
    feed = {"x": np.eye(3, dtype="float32"), "label": np.array([[0], [2], [1]])}
    out = [value.item() for value in exe.run(feed=feed, fetch_list=losses)]
    np.testing.assert_allclose(out[1::2], out[::2], rtol=1e-5)
    weighted = lambda: functional.cross_entropy(x, label, weight=x)  # noqa: E731
    raises(ValueError, ["wrong weight of cross entropy", "f32[3]", "f32[-1, 3]"], weighted)
    by_hand = lambda: functional.cross_entropy(x, label, weight=[1.0, 2.0])  # noqa: E731
    raises(TypeError, ["weight", "a Variable"], by_hand)


def test_weights_of_classes(exe):
    x = static.data("x", [None, 3])
    label = static.data("label", [None, 1], "int64")
    weight = static.data("weight", [3])
    wanted, losses = {}, {}
    rows = np.array([[0.5, -1.0, 2.0], [1.0, 0.0, -0.5], [0.0, 3.0, 1.0]], "float32")
    classes, weights = np.array([2, 0, 1]), np.array([1.0, 0.25, 4.0], "float32")
    each = np.log(np.exp(rows).sum(1)) - rows[np.arange(3), classes]
    each = each * weights[classes]
    wanted["mean"] = [each.sum() / weights.sum()]
    wanted["sum"] = [each.sum()]
    wanted["none"] = each[:, None]
    for reduction in wanted:
        losses[reduction] = functional.cross_entropy(x, label, weight, reduction=reduction)
    wanted["ignored"] = [(each[0] + each[2]) / (weights[2] + weights[1])]
    losses["ignored"] = functional.cross_entropy(x, label, weight, ignore_index=0)
    wanted["probabilities"] = wanted["mean"]
    losses["probabilities"] = functional.cross_entropy(
        functional.softmax(x), label, weight, use_softmax=False
    )
    feed = {"x": rows, "label": classes[:, None], "weight": weights}
    out = exe.run(feed=feed, fetch_list=list(losses.values()))
    for name, value in zip(losses, out):
        np.testing.assert_allclose(value, wanted[name], rtol=1e-5, err_msg=name)


def test_a_list_of_inputs_of_fc(exe, raises):
    x, y = static.data("x", [None, 3]), static.data("y", [None, 2])
    assert static.nn.fc([x], 2).shape == (-1, 2)
    out = fluid.layers.fc(input=[x, y], size=4, act="relu", name="both")
    program = static.default_main_program()
    assert program.op_names[-5:] == ["mul", "mul", "sum", "elementwise_add", "relu"]
    exe.run(static.default_startup_program())
    state = program.state_dict()
    xs, ys = np.ones((2, 3), "float32"), np.full((2, 2), 2.0, "float32")
    (value,) = exe.run(feed={"x": xs, "y": ys}, fetch_list=[out])
    sum = xs @ state["both.w_0"] + ys @ state["both.w_1"] + state["both.b_0"]
    np.testing.assert_allclose(value, np.maximum(sum, 0.0), rtol=1e-5)
    raises(ValueError, ["fc has no inputs"], lambda: static.nn.fc([], 2))
    raises(TypeError, ["fc(): x", "a Variable", "'z'"], lambda: static.nn.fc([x, "z"], 2))
    raises(ValueError, ["cannot share", "w"], lambda: static.nn.fc([x, y], 2, weight_attr="w"))
    image = static.data("image", [4, 5, 6])
    wrong = lambda: static.nn.fc([x, image], 2, num_flatten_dims=-1)  # noqa: E731
    raises(ValueError, ["input 1 of fc does not fit the first"], wrong)
