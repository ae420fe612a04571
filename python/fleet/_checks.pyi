from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


def integer(name: str, value: Any, least: Any, most: int = ...) -> Any: ...
def path(name: str, value: Any) -> Any: ...
def seed(name: str, value: Any) -> Any: ...
