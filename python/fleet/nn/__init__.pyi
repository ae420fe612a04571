from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet.nn import functional as functional
from fleet.nn import initializer as initializer
from fleet.nn import layer as layer
from fleet.nn.layer import Conv2D as Conv2D
from fleet.nn.layer import Embedding as Embedding
from fleet.nn.layer import Layer as Layer
from fleet.nn.layer import LayerList as LayerList
from fleet.nn.layer import Linear as Linear
from fleet.nn.layer import ReLU as ReLU
from fleet.nn.layer import Sequential as Sequential

class ClipGradByGlobalNorm(_Clip):
    def __init__(self, clip_norm: float, group_name: str = ...) -> None: ...
class ClipGradByNorm(_Clip):
    def __init__(self, clip_norm: float) -> None: ...
class ClipGradByValue(_Clip):
    def __init__(self, max: float, min: float | None = ...) -> None: ...
class _Clip: ...
