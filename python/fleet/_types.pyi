from collections.abc import Mapping
from os import PathLike
from typing import Any, TypeAlias

from numpy.typing import NDArray

from fleet._attributes import ParamAttr
from fleet._framework import Variable
from fleet.optimizer.lr import LRScheduler

Array: TypeAlias = NDArray[Any]
Attr: TypeAlias = ParamAttr | str | bool | None | Any
Feeds: TypeAlias = Mapping[str, Any]
LearningRate: TypeAlias = float | LRScheduler
Operand: TypeAlias = Variable | float
Path: TypeAlias = str | PathLike[str]
