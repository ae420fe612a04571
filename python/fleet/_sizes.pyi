from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._framework import Variable as Variable
from fleet._framework import call as call
import fleet._framework

class _Shape(fleet._framework.Variable):
    def __getitem__(self, items: Any) -> Any: ...
class _Size(fleet._framework.Variable): ...
def full(
    shape: Sequence[int | None],
    fill_value: float,
    dtype: str = ...,
    name: str | None = ...,
) -> Any: ...
def ones(shape: Sequence[int | None], dtype: str = ..., name: str | None = ...) -> Any: ...
def shape(input: Variable) -> Any: ...
def zeros(shape: Sequence[int | None], dtype: str = ..., name: str | None = ...) -> Any: ...
