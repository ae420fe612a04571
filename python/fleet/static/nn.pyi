from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._cond import cond as cond
from fleet._framework import Variable as Variable

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
def class_loss(
    input: Variable,
    label: Variable,
    classes: int,
    normalize: bool = ...,
    margin: float = ...,
    scale: float = ...,
    sample: Any = ...,
    weight_attr: Attr = ...,
    reduction: str = ...,
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
def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = ...,
    is_distributed: bool = ...,
    padding_idx: int | None = ...,
    param_attr: Attr = ...,
    dtype: str = ...,
) -> Variable: ...
def fc(
    x: Variable,
    size: int,
    num_flatten_dims: int = ...,
    weight_attr: Attr = ...,
    bias_attr: Attr = ...,
    activation: str | None = ...,
    name: str | None = ...,
    split: Any = ...,
) -> Variable: ...
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
def multi_head_attention(
    x: Variable,
    heads: int,
    key_value: Variable | None = ...,
    causal: bool = ...,
    mask: Any = ...,
    dropout: float = ...,
    initializer: Any = ...,
    name: str | None = ...,
    split_heads: bool = ...,
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
def sparse_embedding(
    input: Variable,
    size: Sequence[int],
    padding_idx: int | None = ...,
    is_test: bool = ...,
    entry: Any = ...,
    table_class: str = ...,
    param_attr: Attr = ...,
    dtype: str = ...,
    slot: Any = ...,
) -> Variable: ...
def transformer_layer(
    x: Variable,
    heads: int,
    ffn: int,
    pre_norm: bool = ...,
    activation: str = ...,
    causal: bool = ...,
    mask: Any = ...,
    dropout: float = ...,
    attention_dropout: float = ...,
    epsilon: float = ...,
    initializer: Any = ...,
    name: str | None = ...,
    split: bool = ...,
) -> Variable: ...
