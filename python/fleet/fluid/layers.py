"""Layers with the spellings of the 1.x interface: ``fleet.fluid.layers``."""

from fleet._absent import spelled as _spelled
from fleet._absent import absent as _absent
from fleet._framework import call as _call
from fleet._framework import default_main_program as _default_main_program
from fleet._framework import default_startup_program as _default_startup_program
from fleet._framework import undone_on_error as _undone_on_error
from fleet._layers import define as _define
from fleet._sizes import ones, shape, zeros
from fleet.static import accuracy
from fleet.static.nn import cond

from .rates import (
    cosine_decay,
    exponential_decay,
    inverse_time_decay,
    linear_lr_warmup,
    natural_exp_decay,
    noam_decay,
    piecewise_decay,
    polynomial_decay,
)

_define(
    globals(),
    """
    _data(name, shape, dtype='float32', lod_level=0) = data
    _embedding(input, size, is_sparse=False, is_distributed=False, padding_idx=None, \
        param_attr=None, dtype='float32') = embedding
    _one_hot(input, depth) = one_hot
    create_parameter(shape, dtype, name=None, attr=None, is_bias=False, default_initializer=None)
    create_global_var(shape, value, dtype, persistable=False, force_cpu=False, name=None)
    fill_constant(shape, dtype, value, force_cpu=False, name=None) = full
    fc(input, size, num_flatten_dims=1, param_attr=None, bias_attr=None, act=None, name=None)
    conv2d(input, num_filters, filter_size, stride=1, padding=0, dilation=1, groups=None, \
        param_attr=None, bias_attr=None, use_cudnn=True, act=None, name=None, data_format='NCHW')
    pool2d(input, pool_size=-1, pool_type='max', pool_stride=1, pool_padding=0, \
        global_pooling=False, use_cudnn=True, ceil_mode=False, name=None, exclusive=True, \
        data_format='NCHW')
    batch_norm(input, act=None, is_test=False, momentum=0.9, epsilon=1e-05, param_attr=None, \
        bias_attr=None, data_layout='NCHW', in_place=False, name=None, moving_mean_name=None, \
        moving_variance_name=None, do_model_average_for_mean_and_var=True, use_global_stats=False)
    layer_norm(input, scale=True, shift=True, begin_norm_axis=1, epsilon=1e-05, param_attr=None, \
        bias_attr=None, act=None, name=None)
    cross_entropy(input, label, soft_label=False, ignore_index=-100) \
        = cross_entropy_of_probabilities
    softmax_with_cross_entropy(logits, label, soft_label=False, ignore_index=-100, \
        numeric_stable_mode=True, return_softmax=False, axis=-1)
    sigmoid_cross_entropy_with_logits(x, label, name=None)
    square_error_cost(input, label)
    log_loss(input, label, epsilon=0.0001, name=None)
    huber_loss(input, label, delta)
    label_smooth(x, epsilon=0.1, name=None)
    auc(input, label, curve='ROC', num_thresholds=4095, topk=1, slide_steps=1)
    mean(x, name=None) = mean_of_all
    reduce_sum(input, dim=None, keep_dim=False, name=None)
    reduce_mean(input, dim=None, keep_dim=False, name=None)
    reduce_max(input, dim=None, keep_dim=False, name=None)
    reduce_min(input, dim=None, keep_dim=False, name=None)
    reduce_prod(input, dim=None, keep_dim=False, name=None)
    elementwise_add(x, y, axis=-1, act=None, name=None)
    elementwise_sub(x, y, axis=-1, act=None, name=None)
    elementwise_mul(x, y, axis=-1, act=None, name=None)
    elementwise_div(x, y, axis=-1, act=None, name=None)
    elementwise_max(x, y, name=None) = maximum
    elementwise_min(x, y, name=None) = minimum
    elementwise_pow(x, y, name=None) = pow
    elementwise_mod(x, y, name=None) = remainder
    elementwise_floordiv(x, y, name=None) = floor_divide
    equal(x, y, name=None)
    not_equal(x, y, name=None)
    less_than(x, y, name=None)
    less_equal(x, y, name=None)
    greater_than(x, y, name=None)
    greater_equal(x, y, name=None)
    logical_and(x, y, name=None)
    logical_or(x, y, name=None)
    logical_not(x, name=None)
    relu(x, name=None)
    relu6(x, name=None)
    leaky_relu(x, alpha=0.02, name=None)
    sigmoid(x, name=None)
    logsigmoid(x, name=None) = log_sigmoid
    tanh(x, name=None)
    softplus(x, name=None)
    softsign(x, name=None)
    swish(x, name=None)
    hard_swish(x, name=None) = hardswish
    hard_sigmoid(x, name=None) = hardsigmoid
    selu(x, name=None)
    elu(x, alpha=1.0, name=None)
    gelu(x, approximate=False, name=None)
    softmax(input, use_cudnn=True, name=None, axis=-1)
    exp(x, name=None)
    log(x, name=None)
    sqrt(x, name=None)
    rsqrt(x, name=None)
    square(x, name=None)
    abs(x, name=None)
    reciprocal(x, name=None)
    sign(x, name=None)
    floor(x, name=None)
    ceil(x, name=None)
    round(x, name=None)
    cos(x, name=None)
    sin(x, name=None)
    erf(x, name=None)
    clip(x, min, max, name=None)
    scale(x, scale=1.0, bias=0.0, bias_after_scale=True, act=None, name=None)
    cast(x, dtype)
    concat(input, axis=0, name=None)
    stack(x, axis=0)
    unstack(x, axis=0)
    sums(input) = add_n
    sum(x) = add_n
    split(input, num_or_sections, dim=-1, name=None)
    squeeze(input, axes=None, name=None)
    unsqueeze(input, axes, name=None)
    reshape(x, shape, inplace=False, name=None)
    transpose(x, perm, name=None)
    slice(input, axes, starts, ends)
    strided_slice(input, axes, starts, ends, strides)
    gather(input, index)
    gather_nd(input, index, name=None)
    scatter(input, index, updates, overwrite=True, name=None)
    argmax(x, axis=0)
    argmin(x, axis=0)
    topk(input, k, name=None)
    assign(input, output=None)
    cumsum(x, axis)
    range(start, end, step=1, dtype='int64', name=None) = arange
    pad(x, paddings, pad_value=0.0, name=None)
    mse_loss(input, label)
    kldiv_loss(x, target, reduction='mean') = kl_div
    matmul(x, y, transpose_x=False, transpose_y=False, alpha=1.0, name=None)
    """,
)


def data(name, shape, append_batch_size=True, dtype="float32", lod_level=0):
    """Adds an input variable; the batch is put before the shape."""
    shape = list(shape)
    if append_batch_size and not any(size is None or size < 0 for size in shape):
        shape = [-1, *shape]
    return _data(name, shape, dtype, lod_level)  # noqa: F821


def embedding(
    input,
    size,
    is_sparse=False,
    is_distributed=False,
    padding_idx=None,
    param_attr=None,
    dtype="float32",
):
    """Looks up the rows of ids in a table. The last dimension of the ids is 1, and is replaced by
    the row."""
    if not input.shape or input.shape[-1] != 1:
        raise ValueError(
            _spelled(
                f"embedding(): input: expected a last dimension of 1, got {list(input.shape)}\n  "
                "help: use fleet.static.nn.embedding, which adds a dimension"
            )
        )
    with _undone_on_error(_default_main_program(), _default_startup_program()):
        ids = _call("squeeze", {"x": input, "axis": [input.ndim - 1]})
        return _embedding(  # noqa: F821
            ids, size, is_sparse, is_distributed, padding_idx, param_attr, dtype
        )


def one_hot(input, depth):
    """Returns a row for each class number, whose last dimension is 1 and is replaced by the row:
    zeros, and a one at the number."""
    if not input.shape or input.shape[-1] != 1:
        raise ValueError(
            _spelled(
                f"one_hot(): input: expected a last dimension of 1, got {list(input.shape)}\n  "
                "help: use fleet.nn.functional.one_hot, which adds a dimension"
            )
        )
    return _one_hot(  # noqa: F821
        _call("squeeze", {"x": input, "axis": [input.ndim - 1]}), depth
    )


def pow(x, factor=1.0, name=None):
    """Returns ``x`` raised to the power of a number or a variable."""
    return _call("pow", {"x": x, "y": factor, "name": name})


def expand(x, expand_times, name=None):
    """Repeats the whole tensor along each dimension."""
    return _call("tile", {"x": x, "repeat_times": expand_times, "name": name})


def fill_constant_batch_size_like(
    input, shape, dtype, value, input_dim_idx=0, output_dim_idx=0, force_cpu=False
):
    """Returns a tensor of one value, whose first dimension is the batch size of ``input``."""
    if input_dim_idx != 0 or output_dim_idx != 0:
        raise NotImplementedError(
            "fill_constant_batch_size_like(): expected the batch as the first dimension of both\n  "
            "help: leave out input_dim_idx and output_dim_idx, and use transpose"
        )
    shape = [-1, *list(shape)[1:]]
    args = {"x": input, "shape": shape, "dtype": dtype, "value": value, "name": None}
    return _call("full_batch", args)


def zeros_like(x, out=None):
    """Returns zeros, with the shape and type of ``x``."""
    return _call("full_like", {"x": x, "fill_value": 0.0, "name": None})


def ones_like(x, out=None):
    """Returns ones, with the shape and type of ``x``."""
    return _call("full_like", {"x": x, "fill_value": 1.0, "name": None})


def py_reader(
    capacity, shapes, dtypes, lod_levels=None, name=None, use_double_buffer=True
):
    """Adds inputs and returns their loader, whose batches `exe.run` takes. `read_file` returns the
    inputs."""
    from fleet.fluid.io import PyReader
    from fleet.utils import unique_name

    if len(dtypes) != len(shapes):
        raise ValueError(f"py_reader(): dtypes: expected {len(shapes)} types, got {len(dtypes)}")
    levels = lod_levels or [0] * len(shapes)
    name = name or unique_name.generate("py_reader")
    made = [
        _data(f"{name}_slot_{index}", list(shape), dtype, level)  # noqa: F821
        for index, (shape, dtype, level) in enumerate(zip(shapes, dtypes, levels))
    ]
    reader = PyReader(made, capacity, use_double_buffer, iterable=False)
    reader.inputs = made
    return reader


def read_file(reader):
    """Returns the inputs of a `py_reader`: one, or a list."""
    return reader.inputs[0] if len(reader.inputs) == 1 else list(reader.inputs)


def double_buffer(reader, place=None, name=None):
    """Returns the reader, whose batches are always made ahead of time."""
    return reader


def flatten(x, axis=1, name=None):
    """Returns a matrix: the dimensions before ``axis``, and those from it on, each as one."""
    if axis != 1:
        raise NotImplementedError("flatten: only axis=1 is supported\n  help: use reshape")
    return _call("flatten", {"x": x, "start_axis": 1, "stop_axis": -1, "name": name})


def dropout(
    x,
    dropout_prob,
    is_test=False,
    seed=None,
    name=None,
    dropout_implementation="downgrade_in_infer",
):
    """Zeroes random elements in training."""
    args = {"x": x, "p": dropout_prob, "training": not is_test, "seed": seed}
    return _call("dropout", {**args, "mode": dropout_implementation, "name": name})


__getattr__ = _absent(__name__)
