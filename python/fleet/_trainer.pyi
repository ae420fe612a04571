from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._executor import Executor as Executor
from fleet._executor import Scope as Scope
from fleet._executor import global_scope as global_scope
from fleet._framework import Program as Program
from fleet._framework import Variable as Variable
from fleet._framework import default_main_program as default_main_program
from typing import NamedTuple

class Trained(NamedTuple):
    step: Any
    epoch: Any
    rows: Any
    seconds: Any
    ended: Any
    resumed_step: Any
    best: Any
    best_step: Any
    validated: Any
class Trainer:
    def __init__(
        self,
        epochs: Any = ...,
        steps: Any = ...,
        watch: Any = ...,
        metrics: Any = ...,
        validation_data: Any = ...,
        validate_every: str = ...,
        goal: Any = ...,
        min_delta: float = ...,
        early_stop: Any = ...,
        checkpoints: Any = ...,
        save_steps: Any = ...,
        save_secs: float = ...,
        keep: int = ...,
        constants: Any = ...,
        scalars: Any = ...,
        scalars_every: int = ...,
        callback: Any = ...,
        shuffle: bool = ...,
        look_ahead: bool = ...,
        progress: bool = ...,
    ) -> None: ...
    def run(
        self,
        executor: Executor,
        data: Any,
        program: Program | None = ...,
        scope: Scope | None = ...,
    ) -> Any: ...
