from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._attributes import BuildStrategy as BuildStrategy
from fleet._attributes import ExecutionStrategy as ExecutionStrategy
from fleet._executor import Executor as Executor
from fleet._executor import Scope as Scope
from fleet._executor import global_scope as global_scope
from fleet._framework import Program as Program
from fleet._framework import Variable as Variable
from fleet._framework import default_main_program as default_main_program
from fleet._framework import warn_user as warn_user
import fleet._framework

class CompiledProgram(fleet._framework.Program):
    def __init__(self, program_or_graph: Any, build_strategy: Any = ...) -> None: ...
    def with_data_parallel(
        self,
        loss_name: Any = ...,
        build_strategy: Any = ...,
        exec_strategy: Any = ...,
        share_vars_from: Any = ...,
        places: Any = ...,
    ) -> Any: ...
class ParallelExecutor:
    def __init__(
        self,
        use_cuda: bool = ...,
        loss_name: Any = ...,
        main_program: Program | None = ...,
        share_vars_from: Any = ...,
        exec_strategy: Any = ...,
        build_strategy: Any = ...,
        num_trainers: int = ...,
        trainer_id: int = ...,
        scope: Scope | None = ...,
    ) -> None: ...
    def run(
        self,
        fetch_list: Sequence[Variable | str],
        feed: Feeds | None = ...,
        feed_dict: Any = ...,
        return_numpy: bool = ...,
    ) -> Any: ...
    @property
    def device_count(self) -> Any: ...
