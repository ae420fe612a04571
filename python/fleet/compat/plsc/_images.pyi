from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


BATCHES: int
def images(
    folder: Any,
    shape: Sequence[int | None],
    classes: int,
    batch_size: Any,
    generate: Any,
) -> Any: ...
