from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._loaders import DataLoader as DataLoader
from fleet._samplers import BatchSampler as BatchSampler
from fleet._samplers import Dataset as Dataset
from fleet._samplers import DistributedBatchSampler as DistributedBatchSampler
from fleet._samplers import IterableDataset as IterableDataset
from fleet._sources import from_table as from_table
from fleet._sources import from_torch as from_torch


