from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._framework import Program as Program
from fleet._framework import default_main_program as default_main_program
from fleet._framework import default_startup_program as default_startup_program
from fleet._framework import place as place
import fleet._framework

class DistributeTranspiler:
    def __init__(self, config: Any = ...) -> None: ...
    def transpile(
        self,
        trainer_id: Any,
        program: Program | None = ...,
        pservers: str = ...,
        trainers: int = ...,
        sync_mode: Any = ...,
        startup_program: Program | None = ...,
        current_endpoint: str = ...,
    ) -> None: ...
    def get_trainer_program(self, wait_port: bool = ...) -> Any: ...
    def get_pserver_program(self, endpoint: Any) -> Any: ...
    def get_pserver_programs(self, endpoint: Any) -> Any: ...
    def get_startup_program(
        self,
        endpoint: Any,
        pserver_program: Any = ...,
        startup_program: Program | None = ...,
    ) -> Any: ...
class DistributeTranspilerConfig:
    def __init__(self) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
class _ServerProgram(fleet._framework.Program): ...
class _TrainerProgram(fleet._framework.Program): ...
