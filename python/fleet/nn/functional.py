"""Functions of variables: ``fleet.nn.functional``."""

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
    dropout(x, p=0.5, training=True, mode='upscale_in_train')
    one_hot(x, num_classes)
    label_smooth(x, epsilon=0.1)
    cross_entropy(input, label, weight=None, ignore_index=-100, reduction='mean', \
        soft_label=False, axis=-1, use_softmax=True)
    softmax_with_cross_entropy(logits, label, soft_label=False, ignore_index=-100, \
        numeric_stable_mode=True, return_softmax=False, axis=-1)
    sigmoid_cross_entropy_with_logits(x, label, name=None)
    log_loss(input, label, epsilon=0.0001, name=None)
    square_error_cost(input, label)
    mse_loss(input, label, reduction='mean')
    l1_loss(input, label, reduction='mean')
    kl_div(input, label, reduction='mean')
    nll_loss(input, label, reduction='mean')
    """,
)
