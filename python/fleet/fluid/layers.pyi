from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._cond import cond as cond
from fleet._framework import Variable as Variable
from fleet._sizes import ones as ones
from fleet._sizes import shape as shape
from fleet._sizes import zeros as zeros
from fleet.fluid.rates import cosine_decay as cosine_decay
from fleet.fluid.rates import exponential_decay as exponential_decay
from fleet.fluid.rates import inverse_time_decay as inverse_time_decay
from fleet.fluid.rates import linear_lr_warmup as linear_lr_warmup
from fleet.fluid.rates import natural_exp_decay as natural_exp_decay
from fleet.fluid.rates import noam_decay as noam_decay
from fleet.fluid.rates import piecewise_decay as piecewise_decay
from fleet.fluid.rates import polynomial_decay as polynomial_decay
from fleet.static import accuracy as accuracy

def abs(x: Variable, name: str | None = ...) -> Variable: ...
def argmax(x: Variable, axis: int | Sequence[int] = ...) -> Variable: ...
def argmin(x: Variable, axis: int | Sequence[int] = ...) -> Variable: ...
def assign(input: Variable, output: Any = ...) -> Variable: ...
def auc(
    input: Variable,
    label: Variable,
    curve: str = ...,
    num_thresholds: int = ...,
    topk: int = ...,
    slide_steps: int = ...,
) -> tuple[Variable, Variable, list[Variable]]: ...
def batch_norm(
    input: Variable,
    act: str | None = ...,
    is_test: bool = ...,
    momentum: float = ...,
    epsilon: float = ...,
    param_attr: Attr = ...,
    bias_attr: Attr = ...,
    data_layout: str = ...,
    in_place: bool = ...,
    name: str | None = ...,
    moving_mean_name: str | None = ...,
    moving_variance_name: str | None = ...,
    do_model_average_for_mean_and_var: bool = ...,
    use_global_stats: bool = ...,
) -> Variable: ...
def cast(x: Variable, dtype: str) -> Variable: ...
def ceil(x: Variable, name: str | None = ...) -> Variable: ...
def clip(x: Variable, min: float, max: float, name: str | None = ...) -> Variable: ...
def concat(
    input: Sequence[Variable],
    axis: int | Sequence[int] = ...,
    name: str | None = ...,
) -> Variable: ...
def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    groups: Any = ...,
    param_attr: Attr = ...,
    bias_attr: Attr = ...,
    use_cudnn: bool = ...,
    act: str | None = ...,
    name: str | None = ...,
    data_format: str = ...,
) -> Variable: ...
def cos(x: Variable, name: str | None = ...) -> Variable: ...
def create_global_var(
    shape: Sequence[int | None],
    value: Any,
    dtype: str,
    persistable: bool = ...,
    force_cpu: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def create_parameter(
    shape: Sequence[int | None],
    dtype: str,
    name: str | None = ...,
    attr: Attr = ...,
    is_bias: bool = ...,
    default_initializer: Any = ...,
) -> Variable: ...
def cross_entropy(
    input: Variable,
    label: Variable,
    soft_label: bool = ...,
    ignore_index: int = ...,
) -> Variable: ...
def cumsum(x: Variable, axis: int | Sequence[int]) -> Variable: ...
def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = ...,
    dtype: str = ...,
    lod_level: int = ...,
) -> Variable: ...
def double_buffer(reader: Any, place: Any = ..., name: str | None = ...) -> Variable: ...
def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: bool = ...,
    seed: Any = ...,
    name: str | None = ...,
    dropout_implementation: str = ...,
) -> Variable: ...
def elementwise_add(
    x: Variable,
    y: Operand,
    axis: int | Sequence[int] = ...,
    act: str | None = ...,
    name: str | None = ...,
) -> Variable: ...
def elementwise_div(
    x: Variable,
    y: Operand,
    axis: int | Sequence[int] = ...,
    act: str | None = ...,
    name: str | None = ...,
) -> Variable: ...
def elementwise_floordiv(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def elementwise_max(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def elementwise_min(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def elementwise_mod(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def elementwise_mul(
    x: Variable,
    y: Operand,
    axis: int | Sequence[int] = ...,
    act: str | None = ...,
    name: str | None = ...,
) -> Variable: ...
def elementwise_pow(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def elementwise_sub(
    x: Variable,
    y: Operand,
    axis: int | Sequence[int] = ...,
    act: str | None = ...,
    name: str | None = ...,
) -> Variable: ...
def elu(x: Variable, alpha: float = ..., name: str | None = ...) -> Variable: ...
def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = ...,
    is_distributed: bool = ...,
    padding_idx: int | None = ...,
    param_attr: Attr = ...,
    dtype: str = ...,
) -> Variable: ...
def equal(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def erf(x: Variable, name: str | None = ...) -> Variable: ...
def exp(x: Variable, name: str | None = ...) -> Variable: ...
def expand(x: Variable, expand_times: Any, name: str | None = ...) -> Variable: ...
def fc(
    input: Variable,
    size: int,
    num_flatten_dims: int = ...,
    param_attr: Attr = ...,
    bias_attr: Attr = ...,
    act: str | None = ...,
    name: str | None = ...,
) -> Variable: ...
def fill_constant(
    shape: Sequence[int | None],
    dtype: str,
    value: Any,
    force_cpu: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def fill_constant_batch_size_like(
    input: Variable,
    shape: Sequence[int | None],
    dtype: str,
    value: Any,
    input_dim_idx: int = ...,
    output_dim_idx: int = ...,
    force_cpu: bool = ...,
) -> Variable: ...
def flatten(
    x: Variable,
    axis: int | Sequence[int] = ...,
    name: str | None = ...,
) -> Variable: ...
def floor(x: Variable, name: str | None = ...) -> Variable: ...
def gather(input: Variable, index: Variable) -> Variable: ...
def gather_nd(input: Variable, index: Variable, name: str | None = ...) -> Variable: ...
def gelu(x: Variable, approximate: bool = ..., name: str | None = ...) -> Variable: ...
def greater_equal(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def greater_than(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def hard_sigmoid(x: Variable, name: str | None = ...) -> Variable: ...
def hard_swish(x: Variable, name: str | None = ...) -> Variable: ...
def huber_loss(input: Variable, label: Variable, delta: Any) -> Variable: ...
def kldiv_loss(x: Variable, target: Any, reduction: str = ...) -> Variable: ...
def label_smooth(x: Variable, epsilon: float = ..., name: str | None = ...) -> Variable: ...
def layer_norm(
    input: Variable,
    scale: bool = ...,
    shift: bool = ...,
    begin_norm_axis: int = ...,
    epsilon: float = ...,
    param_attr: Attr = ...,
    bias_attr: Attr = ...,
    act: str | None = ...,
    name: str | None = ...,
) -> Variable: ...
def leaky_relu(x: Variable, alpha: float = ..., name: str | None = ...) -> Variable: ...
def less_equal(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def less_than(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def log(x: Variable, name: str | None = ...) -> Variable: ...
def log_loss(
    input: Variable,
    label: Variable,
    epsilon: float = ...,
    name: str | None = ...,
) -> Variable: ...
def logical_and(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def logical_not(x: Variable, name: str | None = ...) -> Variable: ...
def logical_or(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def logsigmoid(x: Variable, name: str | None = ...) -> Variable: ...
def matmul(
    x: Variable,
    y: Operand,
    transpose_x: bool = ...,
    transpose_y: bool = ...,
    alpha: float = ...,
    name: str | None = ...,
) -> Variable: ...
def mean(x: Variable, name: str | None = ...) -> Variable: ...
def mse_loss(input: Variable, label: Variable) -> Variable: ...
def not_equal(x: Variable, y: Operand, name: str | None = ...) -> Variable: ...
def one_hot(input: Variable, depth: Any) -> Variable: ...
def ones_like(x: Variable, out: Any = ...) -> Variable: ...
def pad(
    x: Variable,
    paddings: Any,
    pad_value: float = ...,
    name: str | None = ...,
) -> Variable: ...
def pool2d(
    input: Variable,
    pool_size: int | Sequence[int] = ...,
    pool_type: str = ...,
    pool_stride: int | Sequence[int] = ...,
    pool_padding: int | Sequence[int] = ...,
    global_pooling: bool = ...,
    use_cudnn: bool = ...,
    ceil_mode: bool = ...,
    name: str | None = ...,
    exclusive: bool = ...,
    data_format: str = ...,
) -> Variable: ...
def pow(x: Variable, factor: float = ..., name: str | None = ...) -> Variable: ...
def py_reader(
    capacity: Any,
    shapes: Any,
    dtypes: Any,
    lod_levels: Any = ...,
    name: str | None = ...,
    use_double_buffer: bool = ...,
) -> Variable: ...
def range(
    start: Any,
    end: Any,
    step: int = ...,
    dtype: str = ...,
    name: str | None = ...,
) -> Variable: ...
def read_file(reader: Any) -> Variable: ...
def reciprocal(x: Variable, name: str | None = ...) -> Variable: ...
def reduce_max(
    input: Variable,
    dim: int | Sequence[int] | None = ...,
    keep_dim: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def reduce_mean(
    input: Variable,
    dim: int | Sequence[int] | None = ...,
    keep_dim: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def reduce_min(
    input: Variable,
    dim: int | Sequence[int] | None = ...,
    keep_dim: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def reduce_prod(
    input: Variable,
    dim: int | Sequence[int] | None = ...,
    keep_dim: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def reduce_sum(
    input: Variable,
    dim: int | Sequence[int] | None = ...,
    keep_dim: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def relu(x: Variable, name: str | None = ...) -> Variable: ...
def relu6(x: Variable, name: str | None = ...) -> Variable: ...
def reshape(
    x: Variable,
    shape: Sequence[int | None],
    inplace: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def round(x: Variable, name: str | None = ...) -> Variable: ...
def rsqrt(x: Variable, name: str | None = ...) -> Variable: ...
def scale(
    x: Variable,
    scale: float = ...,
    bias: float = ...,
    bias_after_scale: bool = ...,
    act: str | None = ...,
    name: str | None = ...,
) -> Variable: ...
def scatter(
    input: Variable,
    index: Variable,
    updates: Variable,
    overwrite: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def selu(x: Variable, name: str | None = ...) -> Variable: ...
def sigmoid(x: Variable, name: str | None = ...) -> Variable: ...
def sigmoid_cross_entropy_with_logits(
    x: Variable,
    label: Variable,
    name: str | None = ...,
) -> Variable: ...
def sign(x: Variable, name: str | None = ...) -> Variable: ...
def sin(x: Variable, name: str | None = ...) -> Variable: ...
def slice(
    input: Variable,
    axes: int | Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
) -> Variable: ...
def softmax(
    input: Variable,
    use_cudnn: bool = ...,
    name: str | None = ...,
    axis: int | Sequence[int] = ...,
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
def split(
    input: Variable,
    num_or_sections: int | Sequence[int],
    dim: int | Sequence[int] = ...,
    name: str | None = ...,
) -> list[Variable]: ...
def sqrt(x: Variable, name: str | None = ...) -> Variable: ...
def square(x: Variable, name: str | None = ...) -> Variable: ...
def square_error_cost(input: Variable, label: Variable) -> Variable: ...
def squeeze(
    input: Variable,
    axes: int | Sequence[int] | None = ...,
    name: str | None = ...,
) -> Variable: ...
def stack(x: Sequence[Variable], axis: int | Sequence[int] = ...) -> Variable: ...
def strided_slice(
    input: Variable,
    axes: int | Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    strides: Sequence[int],
) -> Variable: ...
def sum(x: Variable) -> Variable: ...
def sums(input: Variable) -> Variable: ...
def swish(x: Variable, name: str | None = ...) -> Variable: ...
def tanh(x: Variable, name: str | None = ...) -> Variable: ...
def topk(input: Variable, k: int, name: str | None = ...) -> tuple[Variable, Variable]: ...
def transpose(x: Variable, perm: Sequence[int], name: str | None = ...) -> Variable: ...
def unsqueeze(
    input: Variable,
    axes: int | Sequence[int],
    name: str | None = ...,
) -> Variable: ...
def unstack(x: Variable, axis: int | Sequence[int] = ...) -> list[Variable]: ...
def zeros_like(x: Variable, out: Any = ...) -> Variable: ...
