from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet import nn as nn
from fleet._framework import Variable as Variable
from fleet.static import nn as nn

class BaseModel:
    def build_network(self, input: Variable, label: Variable, is_train: bool = ...) -> None: ...
class ResNet(BaseModel):
    layers: Any
    emb_dim: Any
    def __init__(self, layers: int = ..., emb_dim: int = ...) -> None: ...
    def build_network(self, input: Variable, label: Variable, is_train: bool = ...) -> Any: ...
def ResNet101(emb_dim: int = ...) -> Any: ...
def ResNet152(emb_dim: int = ...) -> Any: ...
def ResNet50(emb_dim: int = ...) -> Any: ...
layers = nn
