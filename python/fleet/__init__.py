"""Fleet: distributed training of deep models.

A network is written with layers, becomes a program, and is run by an executor::

    import fleet

    x = fleet.static.data("x", [None, 13])
    y = fleet.static.data("y", [None, 1])
    loss = fleet.nn.functional.mse_loss(fleet.static.nn.fc(x, 1), y)
    fleet.optimizer.SGD(learning_rate=0.1).minimize(loss)

    exe = fleet.static.Executor()
    exe.run(fleet.static.default_startup_program())
    exe.run(feed={"x": xs, "y": ys}, fetch_list=[loss])
"""

from fleet._absent import spelled as _spelled
from fleet._absent import _LAZY
from fleet._absent import absent as _absent
from fleet import _logging
from fleet import core, distributed, io, metric, nn, onnx, optimizer, reader, regularizer
from fleet import static, utils
from fleet._attributes import ParamAttr
from fleet._executor import (
    CPUPlace,
    CUDAPlace,
    get_device,
    is_compiled_with_cuda,
    set_device,
)
from fleet._framework import seed
from fleet._layers import define as _define
from fleet._jobs import Job
from fleet._trainer import Trained, Trainer
from fleet._sizes import full, ones, shape, zeros
from fleet.reader import batch
from fleet._version import __version__

_define(
    globals(),
    """
    cast(x, dtype)
    full_like(x, fill_value, name=None)
    arange(start, end, step=1, dtype='int64', name=None)
    assign(x, output=None)
    scale(x, scale=1.0, bias=0.0, bias_after_scale=True, act=None, name=None)
    add(x, y, name=None) = elementwise_add
    subtract(x, y, name=None) = elementwise_sub
    multiply(x, y, name=None) = elementwise_mul
    divide(x, y, name=None) = elementwise_div
    maximum(x, y, name=None)
    minimum(x, y, name=None)
    pow(x, y, name=None)
    remainder(x, y, name=None)
    mod(x, y, name=None) = remainder
    floor_divide(x, y, name=None)
    matmul(x, y, transpose_x=False, transpose_y=False, name=None)
    add_n(inputs, name=None)
    sum(x, axis=None, keepdim=False, name=None) = reduce_sum
    max(x, axis=None, keepdim=False, name=None) = reduce_max
    min(x, axis=None, keepdim=False, name=None) = reduce_min
    prod(x, axis=None, keepdim=False, name=None) = reduce_prod
    cumsum(x, axis, name=None)
    argmax(x, axis=None, keepdim=False, dtype='int64', name=None)
    argmin(x, axis=None, keepdim=False, dtype='int64', name=None)
    topk(x, k, axis=None, largest=True, sorted=True, name=None)
    abs(x, name=None)
    ceil(x, name=None)
    clip(x, min, max, name=None)
    cos(x, name=None)
    erf(x, name=None)
    exp(x, name=None)
    floor(x, name=None)
    log(x, name=None)
    reciprocal(x, name=None)
    round(x, name=None)
    rsqrt(x, name=None)
    sign(x, name=None)
    sin(x, name=None)
    sqrt(x, name=None)
    square(x, name=None)
    tanh(x, name=None)
    equal(x, y, name=None)
    not_equal(x, y, name=None)
    less_than(x, y, name=None)
    less_equal(x, y, name=None)
    greater_than(x, y, name=None)
    greater_equal(x, y, name=None)
    logical_and(x, y, name=None)
    logical_or(x, y, name=None)
    logical_not(x, name=None)
    where(condition, x, y, name=None)
    concat(x, axis=0, name=None)
    stack(x, axis=0, name=None)
    unstack(x, axis=0, name=None)
    split(x, num_or_sections, axis=0, name=None)
    reshape(x, shape, name=None)
    flatten(x, start_axis=0, stop_axis=-1, name=None)
    squeeze(x, axis=None, name=None)
    unsqueeze(x, axis, name=None)
    transpose(x, perm, name=None)
    slice(input, axes, starts, ends)
    strided_slice(x, axes, starts, ends, strides)
    gather(x, index, axis=None, name=None)
    gather_nd(x, index, name=None)
    scatter(x, index, updates, overwrite=True, name=None)
    expand(x, shape, name=None)
    tile(x, repeat_times, name=None)
    """,
)


def mean(x, axis=None, keepdim=False, name=None):
    """Returns the mean of all elements, or means over axes."""
    from fleet._framework import call

    if axis is None and not keepdim:
        return call("mean_of_all", {"x": x, "name": name})
    return call("reduce_mean", {"x": x, "axis": axis, "keepdim": keepdim, "name": name})


def enable_static():
    """Does nothing: networks are always written as programs."""


def disable_static():
    """Not supported: there is no dynamic graph."""
    raise NotImplementedError(
        _spelled(
            "the dynamic graph is not supported\n  "
            "help: write the network with fleet.static.nn and run it with fleet.static.Executor"
        )
    )


def in_dynamic_mode():
    """Returns whether calls compute at once: never."""
    return False


def zeros_like(x, name=None):
    """Returns zeros, with the shape and type of ``x``."""
    return full_like(x, 0.0, name)  # noqa: F821


def ones_like(x, name=None):
    """Returns ones, with the shape and type of ``x``."""
    return full_like(x, 1.0, name)  # noqa: F821


float16 = "float16"
float32 = "float32"
float64 = "float64"
bfloat16 = "bfloat16"
int8 = "int8"
int16 = "int16"
int32 = "int32"
int64 = "int64"
uint8 = "uint8"

_logging.start()

__getattr__ = _absent(__name__, lazy=("compat", "notebook", *_LAZY))
