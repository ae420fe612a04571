from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


IGNORED: str
def help_of(layer: Any, text: Any, parameters: Any) -> Any: ...
def help_of_optimizer(formula: Any, parameters: Any) -> Any: ...
