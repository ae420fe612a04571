from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._framework import Variable as Variable

def adaptive_avg_pool2d(
    x: Variable,
    output_size: Any,
    data_format: str = ...,
    name: str | None = ...,
) -> Variable: ...
def adaptive_max_pool2d(
    x: Variable,
    output_size: Any,
    return_mask: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def avg_pool2d(
    x: Variable,
    kernel_size: Any,
    stride: int | Sequence[int] | None = ...,
    padding: int | Sequence[int] = ...,
    ceil_mode: bool = ...,
    exclusive: bool = ...,
    divisor_override: Any = ...,
    data_format: str = ...,
    name: str | None = ...,
) -> Variable: ...
def binary_cross_entropy_with_logits(
    logit: Any,
    label: Variable,
    weight: Any = ...,
    reduction: str = ...,
    pos_weight: Any = ...,
    name: str | None = ...,
) -> Variable: ...
def cross_entropy(
    input: Variable,
    label: Variable,
    weight: Any = ...,
    ignore_index: int = ...,
    reduction: str = ...,
    soft_label: bool = ...,
    axis: int | Sequence[int] = ...,
    use_softmax: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def dropout(
    x: Variable,
    p: float = ...,
    training: bool = ...,
    mode: str = ...,
    name: str | None = ...,
) -> Variable: ...
def elu(x: Variable, alpha: float = ..., name: str | None = ...) -> Variable: ...
def gelu(x: Variable, approximate: bool = ..., name: str | None = ...) -> Variable: ...
def hardsigmoid(x: Variable, name: str | None = ...) -> Variable: ...
def hardswish(x: Variable, name: str | None = ...) -> Variable: ...
def kl_div(
    input: Variable,
    label: Variable,
    reduction: str = ...,
    name: str | None = ...,
) -> Variable: ...
def l1_loss(
    input: Variable,
    label: Variable,
    reduction: str = ...,
    name: str | None = ...,
) -> Variable: ...
def label_smooth(x: Variable, epsilon: float = ..., name: str | None = ...) -> Variable: ...
def leaky_relu(
    x: Variable,
    negative_slope: float = ...,
    name: str | None = ...,
) -> Variable: ...
def log_loss(
    input: Variable,
    label: Variable,
    epsilon: float = ...,
    name: str | None = ...,
) -> Variable: ...
def log_sigmoid(x: Variable, name: str | None = ...) -> Variable: ...
def log_softmax(
    x: Variable,
    axis: int | Sequence[int] = ...,
    name: str | None = ...,
) -> Variable: ...
def max_pool2d(
    x: Variable,
    kernel_size: Any,
    stride: int | Sequence[int] | None = ...,
    padding: int | Sequence[int] = ...,
    return_mask: bool = ...,
    ceil_mode: bool = ...,
    data_format: str = ...,
    name: str | None = ...,
) -> Variable: ...
def mse_loss(
    input: Variable,
    label: Variable,
    reduction: str = ...,
    name: str | None = ...,
) -> Variable: ...
def nll_loss(
    input: Variable,
    label: Variable,
    reduction: str = ...,
    name: str | None = ...,
) -> Variable: ...
def one_hot(x: Variable, num_classes: int, name: str | None = ...) -> Variable: ...
def relu(x: Variable, name: str | None = ...) -> Variable: ...
def relu6(x: Variable, name: str | None = ...) -> Variable: ...
def selu(x: Variable, name: str | None = ...) -> Variable: ...
def sigmoid(x: Variable, name: str | None = ...) -> Variable: ...
def sigmoid_cross_entropy_with_logits(
    x: Variable,
    label: Variable,
    name: str | None = ...,
) -> Variable: ...
def silu(x: Variable, name: str | None = ...) -> Variable: ...
def softmax(
    x: Variable,
    axis: int | Sequence[int] = ...,
    name: str | None = ...,
) -> Variable: ...
def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = ...,
    ignore_index: int = ...,
    numeric_stable_mode: bool = ...,
    return_softmax: bool = ...,
    axis: int | Sequence[int] = ...,
) -> Variable: ...
def softplus(x: Variable, name: str | None = ...) -> Variable: ...
def softsign(x: Variable, name: str | None = ...) -> Variable: ...
def square_error_cost(input: Variable, label: Variable) -> Variable: ...
def swish(x: Variable, name: str | None = ...) -> Variable: ...
def tanh(x: Variable, name: str | None = ...) -> Variable: ...
