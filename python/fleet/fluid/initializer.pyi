from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet.nn.initializer import Assign as _Assign
from fleet.nn.initializer import Constant as Constant
from fleet.nn.initializer import Constant as _Constant
from fleet.nn.initializer import KaimingNormal as KaimingNormal
from fleet.nn.initializer import KaimingUniform as KaimingUniform
from fleet.nn.initializer import Normal as Normal
from fleet.nn.initializer import Normal as _Normal
from fleet.nn.initializer import TruncatedNormal as TruncatedNormal
from fleet.nn.initializer import TruncatedNormal as _TruncatedNormal
from fleet.nn.initializer import Uniform as Uniform
from fleet.nn.initializer import Uniform as _Uniform
from fleet.nn.initializer import XavierNormal as XavierNormal
from fleet.nn.initializer import XavierUniform as XavierUniform

ConstantInitializer = _Constant
def MSRA(uniform: bool = ..., fan_in: Any = ..., seed: int = ...) -> Any: ...
MSRAInitializer = MSRA
NormalInitializer = _Normal
NumpyArrayInitializer = _Assign
TruncatedNormalInitializer = _TruncatedNormal
UniformInitializer = _Uniform
def Xavier(
    uniform: bool = ...,
    fan_in: Any = ...,
    fan_out: Any = ...,
    seed: int = ...,
) -> Any: ...
XavierInitializer = Xavier
