from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet.optimizer import lr as lr

def cosine_decay(learning_rate: LearningRate, step_each_epoch: Any, epochs: Any) -> Any: ...
def exponential_decay(
    learning_rate: LearningRate,
    decay_steps: int,
    decay_rate: Any,
    staircase: bool = ...,
) -> Any: ...
def inverse_time_decay(
    learning_rate: LearningRate,
    decay_steps: int,
    decay_rate: Any,
    staircase: bool = ...,
) -> Any: ...
def linear_lr_warmup(
    learning_rate: LearningRate,
    warmup_steps: int,
    start_lr: float,
    end_lr: float,
) -> Any: ...
def natural_exp_decay(
    learning_rate: LearningRate,
    decay_steps: int,
    decay_rate: Any,
    staircase: bool = ...,
) -> Any: ...
def noam_decay(d_model: int, warmup_steps: int, learning_rate: LearningRate = ...) -> Any: ...
def piecewise_decay(boundaries: Any, values: Sequence[float]) -> Any: ...
def polynomial_decay(
    learning_rate: LearningRate,
    decay_steps: int,
    end_learning_rate: float = ...,
    power: float = ...,
    cycle: bool = ...,
) -> Any: ...
