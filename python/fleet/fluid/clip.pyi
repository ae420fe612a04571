from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet.nn import ClipGradByGlobalNorm as _ClipGradByGlobalNorm
from fleet.nn import ClipGradByNorm as _ClipGradByNorm
from fleet.nn import ClipGradByValue as _ClipGradByValue

GradientClipByGlobalNorm = _ClipGradByGlobalNorm
GradientClipByNorm = _ClipGradByNorm
GradientClipByValue = _ClipGradByValue
