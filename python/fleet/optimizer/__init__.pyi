from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._framework import Program as Program
from fleet._framework import Variable as Variable
from fleet._framework import all_or_none as all_or_none
from fleet._framework import default_startup_program as default_startup_program
from fleet._framework import place as place
from fleet.optimizer import lr as lr

class Adadelta(Optimizer):
    def __init__(
        self,
        learning_rate: LearningRate = ...,
        epsilon: float = ...,
        rho: float = ...,
        parameters: Any = ...,
        weight_decay: Any = ...,
        grad_clip: Any = ...,
        name: str | None = ...,
    ) -> None: ...
class Adagrad(Optimizer):
    def __init__(
        self,
        learning_rate: LearningRate,
        epsilon: float = ...,
        parameters: Any = ...,
        weight_decay: Any = ...,
        grad_clip: Any = ...,
        name: str | None = ...,
        initial_accumulator_value: float = ...,
    ) -> None: ...
class Adam(Optimizer):
    def __init__(
        self,
        learning_rate: LearningRate = ...,
        beta1: float = ...,
        beta2: float = ...,
        epsilon: float = ...,
        parameters: Any = ...,
        weight_decay: Any = ...,
        grad_clip: Any = ...,
        lazy_mode: bool = ...,
        name: str | None = ...,
    ) -> None: ...
class AdamW(Optimizer):
    def __init__(
        self,
        learning_rate: LearningRate = ...,
        beta1: float = ...,
        beta2: float = ...,
        epsilon: float = ...,
        parameters: Any = ...,
        weight_decay: float = ...,
        grad_clip: Any = ...,
        lazy_mode: bool = ...,
        name: str | None = ...,
    ) -> None: ...
class Adamax(Optimizer):
    def __init__(
        self,
        learning_rate: LearningRate = ...,
        beta1: float = ...,
        beta2: float = ...,
        epsilon: float = ...,
        parameters: Any = ...,
        weight_decay: Any = ...,
        grad_clip: Any = ...,
        name: str | None = ...,
    ) -> None: ...
class Lamb(Optimizer):
    def __init__(
        self,
        learning_rate: LearningRate = ...,
        lamb_weight_decay: float = ...,
        beta1: float = ...,
        beta2: float = ...,
        epsilon: float = ...,
        parameters: Any = ...,
        grad_clip: Any = ...,
        name: str | None = ...,
        exclude_from_weight_decay: Any = ...,
    ) -> None: ...
class LarsMomentum(Optimizer):
    def __init__(
        self,
        learning_rate: LearningRate = ...,
        momentum: float = ...,
        lars_coeff: float = ...,
        lars_weight_decay: float = ...,
        parameters: Any = ...,
        weight_decay: Any = ...,
        grad_clip: Any = ...,
        name: str | None = ...,
        exclude_from_weight_decay: Any = ...,
        epsilon: float = ...,
    ) -> None: ...
class Momentum(Optimizer):
    def __init__(
        self,
        learning_rate: LearningRate = ...,
        momentum: float = ...,
        parameters: Any = ...,
        use_nesterov: bool = ...,
        weight_decay: Any = ...,
        grad_clip: Any = ...,
        name: str | None = ...,
    ) -> None: ...
class Optimizer:
    def __init__(
        self,
        learning_rate: LearningRate,
        parameters: Any,
        weight_decay: Any,
        grad_clip: Any,
        **rule: Any,
    ) -> None: ...
    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = ...,
        parameters: Any = ...,
        no_grad_set: Any = ...,
    ) -> tuple[list[str], list[tuple[Variable, Variable]]]: ...
    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = ...,
        parameters: Any = ...,
        no_grad_set: Any = ...,
        callbacks: Any = ...,
    ) -> list[tuple[Variable, Variable]]: ...
    def apply_gradients(self, params_grads: Any) -> Any: ...
    def get_lr(self) -> float: ...
class RMSProp(Optimizer):
    def __init__(
        self,
        learning_rate: LearningRate,
        rho: float = ...,
        epsilon: float = ...,
        momentum: float = ...,
        centered: bool = ...,
        parameters: Any = ...,
        weight_decay: Any = ...,
        grad_clip: Any = ...,
        name: str | None = ...,
    ) -> None: ...
class SGD(Optimizer):
    def __init__(
        self,
        learning_rate: LearningRate = ...,
        parameters: Any = ...,
        weight_decay: Any = ...,
        grad_clip: Any = ...,
        name: str | None = ...,
    ) -> None: ...
