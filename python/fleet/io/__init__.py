"""Loaders and sources of data: ``fleet.io``."""

from fleet._absent import absent as _absent
from fleet._loaders import DataLoader
from fleet._samplers import BatchSampler, Dataset, DistributedBatchSampler, IterableDataset
from fleet._sources import from_table, from_torch

__getattr__ = _absent(__name__)
