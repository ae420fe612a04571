from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._executor import Executor as Executor
from fleet._framework import Program as Program
from fleet._framework import Variable as Variable
from fleet._framework import default_main_program as default_main_program
from fleet._framework import default_startup_program as default_startup_program

class DistributedInfer:
    origin_main_program: Any
    origin_startup_program: Any
    def __init__(
        self,
        main_program: Program | None = ...,
        startup_program: Program | None = ...,
    ) -> None: ...
    def init_distributed_infer_env(
        self,
        exe: Executor,
        loss: Variable,
        role_maker: Any = ...,
        dirname: str | None = ...,
    ) -> None: ...
    def get_dist_infer_program(self) -> Any: ...
