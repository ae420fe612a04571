from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._loaders import DataLoader as DataLoader
from fleet._sources import from_table as from_table
from fleet._sources import from_torch as from_torch


