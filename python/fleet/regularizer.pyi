from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


class L1Decay:
    def __init__(self, coeff: float = ..., regularization_coeff: Any = ...) -> None: ...
L1DecayRegularizer = L1Decay
class L2Decay:
    def __init__(self, coeff: float = ..., regularization_coeff: Any = ...) -> None: ...
L2DecayRegularizer = L2Decay
