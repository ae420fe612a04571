from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


def test(word_idx: Any) -> Any: ...
def train(word_idx: Any) -> Any: ...
def word_dict() -> Any: ...
