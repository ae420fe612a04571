from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


class BuildStrategy(_Message): ...
class CountFilterEntry:
    def __init__(self, count_filter: float) -> None: ...
class ExecutionStrategy(_Message): ...
class ParamAttr:
    name: str
    initializer: Any
    learning_rate: LearningRate
    regularizer: Any
    trainable: bool
    need_clip: Any
    split: Any
    def __init__(
        self,
        name: str | None = ...,
        initializer: Any = ...,
        learning_rate: LearningRate = ...,
        regularizer: Any = ...,
        trainable: bool = ...,
        do_model_average: bool = ...,
        need_clip: bool = ...,
        split: Any = ...,
    ) -> None: ...
class ProbabilityEntry:
    def __init__(self, probability: float) -> None: ...
class ShowClickEntry:
    def __init__(self, show_name: Any, click_name: Any) -> None: ...
class _Message:
    def __init__(self) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
