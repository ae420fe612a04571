from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._executor import get_device as get_device
from fleet._executor import is_compiled_with_cuda as is_compiled_with_cuda
from fleet._executor import set_device as set_device


