from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet.fluid.contrib import layers as layers
from fleet.static.nn import sparse_embedding as sparse_embedding


