from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._framework import Program as Program
from fleet._framework import Variable as Variable
from fleet._framework import default_startup_program as default_startup_program
from fleet._framework import place as place

def append_backward(
    loss: Variable,
    parameter_list: Any = ...,
    no_grad_set: Any = ...,
) -> list[tuple[Variable, Variable]]: ...
def backward(
    loss: Variable,
    startup_program: Program,
    parameters: Any,
    no_grad_set: Any,
) -> list[tuple[Variable, Variable]]: ...
def gradients(
    targets: Sequence[Variable],
    inputs: Sequence[Variable],
    target_gradients: Any = ...,
    no_grad_set: Any = ...,
) -> list[Variable]: ...
def names(what: Any, given: Any) -> Any: ...
def variables(program: Program, pairs: Any) -> Any: ...
