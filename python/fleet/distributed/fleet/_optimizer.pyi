from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._executor import Scope as Scope
from fleet._framework import Program as Program
from fleet._framework import Variable as Variable
from fleet._framework import default_startup_program as default_startup_program
from fleet._framework import place as place
from fleet.distributed.fleet._job import default_strategy as default_strategy
from fleet.distributed.fleet._job import joined as joined
from fleet.distributed.fleet.strategy import DistributedStrategy as DistributedStrategy

class DistributedOptimizer:
    user_defined_optimizer: Any
    user_defined_strategy: Any
    def __init__(self, optimizer: Any, strategy: Any, rows: Any, half_async: Any) -> None: ...
    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = ...,
        parameter_list: Any = ...,
        no_grad_set: Any = ...,
    ) -> tuple[list[str], list[tuple[Variable, Variable]]]: ...
    def amp_init(
        self,
        place: Any = ...,
        scope: Scope | None = ...,
        test_program: Any = ...,
        use_fp16_test: bool = ...,
    ) -> None: ...
    def get_loss_scaling(self) -> Any: ...
    def applied_strategies(self) -> str: ...
def amp_init(
    place: Any = ...,
    scope: Scope | None = ...,
    test_program: Any = ...,
    use_fp16_test: bool = ...,
) -> None: ...
def distributed_optimizer(
    optimizer: Any,
    strategy: Any = ...,
    *,
    rows: Any = ...,
    half_async: bool = ...,
) -> DistributedOptimizer: ...
def get_loss_scaling() -> Any: ...
def minimize(
    loss: Variable,
    startup_program: Program | None = ...,
    parameter_list: Any = ...,
    no_grad_set: Any = ...,
) -> tuple[list[str], list[tuple[Variable, Variable]]]: ...
def minimized(name: str) -> Any: ...
