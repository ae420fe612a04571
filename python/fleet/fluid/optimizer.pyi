from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
import fleet.optimizer

Adadelta = AdadeltaOptimizer
class AdadeltaOptimizer(fleet.optimizer.Adadelta):
    def __init__(
        self,
        *args: Any,
        regularization: Any = ...,
        parameter_list: Any = ...,
        **kwargs: Any,
    ) -> None: ...
Adagrad = AdagradOptimizer
class AdagradOptimizer(fleet.optimizer.Adagrad):
    def __init__(
        self,
        *args: Any,
        regularization: Any = ...,
        parameter_list: Any = ...,
        **kwargs: Any,
    ) -> None: ...
Adam = AdamOptimizer
class AdamOptimizer(fleet.optimizer.Adam):
    def __init__(
        self,
        *args: Any,
        regularization: Any = ...,
        parameter_list: Any = ...,
        **kwargs: Any,
    ) -> None: ...
Adamax = AdamaxOptimizer
class AdamaxOptimizer(fleet.optimizer.Adamax):
    def __init__(
        self,
        *args: Any,
        regularization: Any = ...,
        parameter_list: Any = ...,
        **kwargs: Any,
    ) -> None: ...
Lamb = LambOptimizer
class LambOptimizer(fleet.optimizer.Lamb):
    def __init__(
        self,
        *args: Any,
        regularization: Any = ...,
        parameter_list: Any = ...,
        **kwargs: Any,
    ) -> None: ...
LarsMomentum = LarsMomentumOptimizer
class LarsMomentumOptimizer(fleet.optimizer.LarsMomentum):
    def __init__(
        self,
        *args: Any,
        regularization: Any = ...,
        parameter_list: Any = ...,
        **kwargs: Any,
    ) -> None: ...
Momentum = MomentumOptimizer
class MomentumOptimizer(fleet.optimizer.Momentum):
    def __init__(
        self,
        *args: Any,
        regularization: Any = ...,
        parameter_list: Any = ...,
        **kwargs: Any,
    ) -> None: ...
RMSProp = RMSPropOptimizer
class RMSPropOptimizer(fleet.optimizer.RMSProp):
    def __init__(
        self,
        *args: Any,
        regularization: Any = ...,
        parameter_list: Any = ...,
        **kwargs: Any,
    ) -> None: ...
SGD = SGDOptimizer
class SGDOptimizer(fleet.optimizer.SGD):
    def __init__(
        self,
        *args: Any,
        regularization: Any = ...,
        parameter_list: Any = ...,
        **kwargs: Any,
    ) -> None: ...
