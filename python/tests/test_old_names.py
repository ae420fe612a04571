"""Names of scripts that are one call of a layer, with the values that they have in Paddle."""

import importlib
import math
import warnings

import numpy as np
import pytest

import fleet
from fleet import compat, fluid, static
from fleet.distributed import fleet as jobs
from fleet.nn import functional as F


def test_pools(exe, raises):
    x = static.data("x", [None, 1, 4, 4])
    layers = [
        F.max_pool2d(x, 2),
        F.avg_pool2d(x, 3, stride=1, padding=1),
        F.adaptive_avg_pool2d(x, 1),
        F.adaptive_max_pool2d(x, [2, 1]),
    ]
    image = np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    largest, means, mean, halves = exe.run(feed={"x": image}, fetch_list=layers)
    assert largest.tolist() == [[[[5, 7], [13, 15]]]]
    assert means.shape == (1, 1, 4, 4) and means[0, 0, 0, 0] == np.mean([0, 1, 4, 5])
    assert mean.tolist() == [[[[7.5]]]] and halves.tolist() == [[[[7], [15]]]]
    raises(NotImplementedError, ["return_mask"], lambda: F.max_pool2d(x, 2, return_mask=True))
    raises(NotImplementedError, ["divisor"], lambda: F.avg_pool2d(x, 2, divisor_override=3))


def test_layers_of_the_old_interface(exe, raises):
    label = static.data("label", [None, 1], "int64")
    x = static.data("x", [None, 2])
    made = [
        fluid.layers.one_hot(label, 3),
        fluid.one_hot(label, 3),
        fluid.layers.pow(x, 2.0),
        fluid.layers.expand(x, [1, 2]),
        fluid.layers.fill_constant_batch_size_like(x, [7, 2], "float32", 4.0),
        fleet.zeros([2]),
        fleet.ones([2], "int64"),
        fleet.ones_like(x) + fleet.zeros_like(x),
    ]
    feed = {"label": np.array([[2], [0]]), "x": np.array([[1, 2], [3, 4]], "float32")}
    hot, deep, squares, wide, filled, zeros, ones, like = exe.run(feed=feed, fetch_list=made)
    assert hot.tolist() == [[0, 0, 1], [1, 0, 0]] and deep.shape == (2, 1, 3)
    assert squares.tolist() == [[1, 4], [9, 16]] and wide[0].tolist() == [1, 2, 1, 2]
    assert filled.tolist() == [[4, 4]] * 2 and zeros.tolist() == [0, 0]
    assert ones.dtype == np.int64 and like.tolist() == [[1, 1]] * 2
    raises(ValueError, ["last dimension of 1"], lambda: fluid.layers.one_hot(x, 3))


def rates(exe, schedule, steps):
    """Returns the rates of a schedule in its first runs."""
    with static.program_guard(static.Program(), static.Program()):
        with static.scope_guard(static.Scope()):
            x = static.data("x", [None, 1])
            optimizer = fluid.optimizer.SGD(learning_rate=schedule)
            optimizer.minimize(fleet.mean(static.nn.fc(x, 1)))
            exe.run(static.default_startup_program())
            feed = {"x": np.ones((1, 1), "float32")}
            rate = optimizer._rate
            return [exe.run(feed=feed, fetch_list=[rate])[0].item() for _ in range(steps)]


L = fluid.layers
SCHEDULES = {
    "piecewise": (lambda: L.piecewise_decay([2, 4], [1.0, 0.5, 0.1]),
                  lambda n: 1.0 if n < 2 else 0.5 if n < 4 else 0.1),
    "exponential": (lambda: L.exponential_decay(0.1, 3, 0.5), lambda n: 0.1 * 0.5 ** (n / 3)),
    "staircase": (lambda: L.exponential_decay(0.1, 3, 0.5, True),
                  lambda n: 0.1 * 0.5 ** (n // 3)),
    "natural": (lambda: L.natural_exp_decay(0.1, 3, 0.5), lambda n: 0.1 * math.exp(-0.5 * n / 3)),
    "natural_staircase": (lambda: L.natural_exp_decay(0.1, 3, 0.5, True),
                          lambda n: 0.1 * math.exp(-0.5 * (n // 3))),
    "inverse": (lambda: L.inverse_time_decay(0.1, 3, 0.5), lambda n: 0.1 / (1 + 0.5 * n / 3)),
    "inverse_staircase": (lambda: L.inverse_time_decay(0.1, 3, 0.5, True),
                          lambda n: 0.1 / (1 + 0.5 * (n // 3))),
    "polynomial": (lambda: L.polynomial_decay(0.1, 4, 0.02), lambda n: 0.1 - 0.02 * min(n, 4)),
    "cosine": (lambda: L.cosine_decay(0.1, 2, 3),
               lambda n: 0.05 * (math.cos(math.pi * (n // 2) / 3) + 1)),
    "warmup": (lambda: L.linear_lr_warmup(0.1, 4, 0.0, 0.08), lambda n: min(n, 4) * 0.02
               if n < 4 else 0.1),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_of_the_old_interface(exe, name):
    make, expected = SCHEDULES[name]
    found = rates(exe, make(), 6)
    assert found == pytest.approx([expected(step) for step in range(6)], rel=1e-5)


def test_weight_decay_of_the_old_interface():
    decay = fluid.regularizer.L2DecayRegularizer(regularization_coeff=0.5)
    assert decay._regularizer == fluid.regularizer.L2Decay(0.5)._regularizer == ("l2", 0.5)
    assert fluid.regularizer.L1DecayRegularizer(0.5)._regularizer == ("l1", 0.5)


def test_the_programs_of_a_collective_script(exe, monkeypatch, raises):
    from fleet.distributed.fleet import _optimizer
    from fleet.fluid.incubate.fleet.collective import fleet as collective

    monkeypatch.setattr(_optimizer, "_minimized", None)
    raises(RuntimeError, ["fleet.main_program", "minimize"], lambda: collective.main_program)
    jobs.init(is_collective=True)
    loss = fleet.mean(static.nn.fc(static.data("x", [None, 2]), 1))
    jobs.distributed_optimizer(fleet.optimizer.SGD(0.1)).minimize(loss)
    assert collective.main_program is static.default_main_program()
    exe.run(collective.startup_program)
    feed = {"x": np.ones((1, 2), "float32")}
    assert exe.run(collective.main_program, feed=feed, fetch_list=[loss])[0].shape == (1,)


def test_the_version_that_scripts_check():
    before = fleet.__version__
    compat.install()
    try:
        paddle = importlib.import_module("paddle")
        text = paddle.__version__
        assert [int(part) for part in text.split(".")] >= [2, 0, 0]
        assert text >= "2.0.0" and text.split(".")[0] == "2"
    finally:
        compat.uninstall()
    assert fleet.__version__ == before


def test_places_of_gpus_warn_once(monkeypatch):
    monkeypatch.setattr(static.CUDAPlace, "_warned", False)
    with pytest.warns(RuntimeWarning, match="programs run on the CPU"):
        assert len(static.cuda_places([0, 1])) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(fluid.cuda_places()) == 1
    assert fleet.device.get_device() == "cpu"


def test_a_notebook_is_an_attribute():
    assert callable(fleet.notebook.launch)
