from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


class Job:
    file: Any
    threads: Any
    folder: Any
    def __init__(self, file: Any, output: Any = ..., threads: int = ...) -> None: ...
    def check(self, rows: int = ...) -> Any: ...
    def train(self, fresh: bool = ..., quiet: bool = ...) -> Any: ...
    def predict(self, data: Any) -> Any: ...
    @property
    def report(self) -> Any: ...
