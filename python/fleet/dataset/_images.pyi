from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


def images(
    name: str,
    samples: Any,
    part: Any,
    side: Any,
    channels: Any,
    count: Any,
    low: float = ...,
    repeat: int = ...,
) -> Any: ...
