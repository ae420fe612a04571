from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._framework import warn_user as warn_user

def classes(rng: Any, count: Any, size: int) -> Any: ...
def reader(name: str, samples: Any) -> Any: ...
def warn(name: str) -> None: ...
