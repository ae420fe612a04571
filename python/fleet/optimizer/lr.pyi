from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._executor import global_scope as global_scope

class CosineAnnealingDecay(LRScheduler):
    def __init__(
        self,
        learning_rate: LearningRate,
        T_max: int,
        eta_min: float = ...,
        last_epoch: int = ...,
        verbose: bool = ...,
    ) -> None: ...
class ExponentialDecay(LRScheduler):
    def __init__(
        self,
        learning_rate: LearningRate,
        gamma: float,
        last_epoch: int = ...,
        verbose: bool = ...,
    ) -> None: ...
class InverseTimeDecay(LRScheduler):
    def __init__(
        self,
        learning_rate: LearningRate,
        gamma: float,
        last_epoch: int = ...,
        verbose: bool = ...,
    ) -> None: ...
class LRScheduler:
    def __init__(self, kind: Any, last_epoch: Any, **settings: Any) -> None: ...
    def step(self, epoch: int | None = ...) -> None: ...
    def get_lr(self) -> float: ...
class LambdaDecay(LRScheduler):
    def __init__(
        self,
        learning_rate: LearningRate,
        lr_lambda: Callable[..., Any],
        last_epoch: int = ...,
        verbose: bool = ...,
    ) -> None: ...
class LinearWarmup(LRScheduler):
    def __init__(
        self,
        learning_rate: LearningRate,
        warmup_steps: int,
        start_lr: float,
        end_lr: float,
        last_epoch: int = ...,
        verbose: bool = ...,
    ) -> None: ...
class MultiStepDecay(LRScheduler):
    def __init__(
        self,
        learning_rate: LearningRate,
        milestones: Sequence[int],
        gamma: float = ...,
        last_epoch: int = ...,
        verbose: bool = ...,
    ) -> None: ...
class NaturalExpDecay(LRScheduler):
    def __init__(
        self,
        learning_rate: LearningRate,
        gamma: float,
        last_epoch: int = ...,
        verbose: bool = ...,
    ) -> None: ...
class NoamDecay(LRScheduler):
    def __init__(
        self,
        d_model: int,
        warmup_steps: int,
        learning_rate: LearningRate = ...,
        last_epoch: int = ...,
        verbose: bool = ...,
    ) -> None: ...
class PiecewiseDecay(LRScheduler):
    def __init__(
        self,
        boundaries: Any,
        values: Sequence[float],
        last_epoch: int = ...,
        verbose: bool = ...,
    ) -> None: ...
class PolynomialDecay(LRScheduler):
    def __init__(
        self,
        learning_rate: LearningRate,
        decay_steps: int,
        end_lr: float = ...,
        power: float = ...,
        cycle: bool = ...,
        last_epoch: int = ...,
        verbose: bool = ...,
    ) -> None: ...
class StepDecay(LRScheduler):
    def __init__(
        self,
        learning_rate: LearningRate,
        step_size: int,
        gamma: float = ...,
        last_epoch: int = ...,
        verbose: bool = ...,
    ) -> None: ...
