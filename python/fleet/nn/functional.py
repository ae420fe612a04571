"""Functions of variables: ``fleet.nn.functional``."""

from fleet._absent import absent as _absent
from fleet._framework import call as _call
from fleet._layers import define as _define

_define(
    globals(),
    """
    relu(x, name=None)
    relu6(x, name=None)
    leaky_relu(x, negative_slope=0.01, name=None)
    elu(x, alpha=1.0, name=None)
    selu(x, name=None)
    gelu(x, approximate=False, name=None)
    sigmoid(x, name=None)
    log_sigmoid(x, name=None)
    tanh(x, name=None)
    softplus(x, name=None)
    softsign(x, name=None)
    silu(x, name=None)
    swish(x, name=None)
    hardswish(x, name=None)
    hardsigmoid(x, name=None)
    softmax(x, axis=-1, name=None)
    log_softmax(x, axis=-1, name=None)
    dropout(x, p=0.5, training=True, mode='upscale_in_train', name=None)
    one_hot(x, num_classes, name=None)
    label_smooth(x, epsilon=0.1, name=None)
    cross_entropy(input, label, weight=None, ignore_index=-100, reduction='mean', \
        soft_label=False, axis=-1, use_softmax=True, name=None)
    softmax_with_cross_entropy(logits, label, soft_label=False, ignore_index=-100, \
        numeric_stable_mode=True, return_softmax=False, axis=-1)
    sigmoid_cross_entropy_with_logits(x, label, name=None)
    log_loss(input, label, epsilon=0.0001, name=None)
    square_error_cost(input, label)
    mse_loss(input, label, reduction='mean', name=None)
    l1_loss(input, label, reduction='mean', name=None)
    kl_div(input, label, reduction='mean', name=None)
    nll_loss(input, label, reduction='mean', name=None)
    """,
)


def max_pool2d(
    x,
    kernel_size,
    stride=None,
    padding=0,
    return_mask=False,
    ceil_mode=False,
    data_format="NCHW",
    name=None,
):
    """Returns the largest element of each window; the stride is ``kernel_size`` by default."""
    _check_none("max_pool2d", "return_mask", return_mask)
    settings = {"pool_type": "max", "exclusive": True, "data_format": data_format, "name": name}
    return _pool(x, kernel_size, stride, padding, ceil_mode, settings)


def avg_pool2d(
    x,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    exclusive=True,
    divisor_override=None,
    data_format="NCHW",
    name=None,
):
    """Returns the mean of each window, without padded elements if ``exclusive``. The stride is
    ``kernel_size`` by default."""
    _check_none("avg_pool2d", "divisor_override", divisor_override)
    settings = {"pool_type": "avg", "exclusive": exclusive, "data_format": data_format}
    return _pool(x, kernel_size, stride, padding, ceil_mode, {**settings, "name": name})


def adaptive_max_pool2d(x, output_size, return_mask=False, name=None):
    """Returns the largest elements of ``output_size`` windows, which cover the image."""
    _check_none("adaptive_max_pool2d", "return_mask", return_mask)
    return _adaptive(x, output_size, "max", "NCHW", name)


def adaptive_avg_pool2d(x, output_size, data_format="NCHW", name=None):
    """Returns the means of ``output_size`` windows, which cover the image."""
    return _adaptive(x, output_size, "avg", data_format, name)


def _pool(x, size, stride, padding, ceil_mode, settings):
    window = {"pool_size": size, "pool_stride": size if stride is None else stride}
    fixed = {"pool_padding": padding, "global_pooling": False, "adaptive": False}
    return _call("pool2d", {"x": x, **window, **fixed, "ceil_mode": ceil_mode, **settings})


def _adaptive(x, size, pool_type, data_format, name):
    kind = {"pool_type": pool_type, "data_format": data_format, "name": name, "adaptive": True}
    fixed = {"pool_padding": 0, "global_pooling": False, "ceil_mode": False, "exclusive": True}
    return _call("pool2d", {"x": x, "pool_size": size, "pool_stride": 1, **fixed, **kind})


def _check_none(layer, name, value):
    if value:
        raise NotImplementedError(f"{layer}(): {name} is not supported\n  help: leave it out")


def binary_cross_entropy_with_logits(
    logit, label, weight=None, reduction="mean", pos_weight=None, name=None
):
    """Returns the cross entropy of logits and labels between 0 and 1, reduced: by default the mean.

    ``weight`` is multiplied with the loss of each element, before the reduction. ``reduction`` is
    'mean', 'sum' or 'none'.
    """
    import fleet

    if pos_weight is not None:
        raise NotImplementedError(
            "pos_weight is not supported\n  help: pass weight, which may be computed from the label"
        )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction: expected 'mean', 'sum' or 'none', got {reduction!r}")
    # The name is that of the last op.
    ops = [lambda _, name: sigmoid_cross_entropy_with_logits(logit, label, name)]
    if weight is not None:
        ops.append(lambda loss, name: fleet.multiply(loss, weight, name))
    if reduction != "none":
        ops.append(lambda loss, name: getattr(fleet, reduction)(loss, name=name))
    loss = None
    for op in ops:
        loss = op(loss, name if op is ops[-1] else None)
    return loss


__getattr__ = _absent(__name__)
