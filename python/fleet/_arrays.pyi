from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


def as_array(what: Any, value: Any, dtype: str) -> Any: ...
def check_mask(what: Any, value: Any) -> None: ...
def converted(array: Any, dtype: str, place: Any) -> Any: ...
