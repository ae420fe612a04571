from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


class BatchSampler:
    dataset: Any
    sampler: Any
    shuffle: Any
    batch_size: Any
    drop_last: Any
    def __init__(
        self,
        dataset: Any = ...,
        sampler: Any = ...,
        shuffle: bool = ...,
        batch_size: int = ...,
        drop_last: bool = ...,
    ) -> None: ...
    def __iter__(self) -> Iterator[list[int]]: ...
    def __len__(self) -> int: ...
class Dataset:
    def __getitem__(self, index: int) -> Any: ...
    def __len__(self) -> int: ...
class DistributedBatchSampler(BatchSampler):
    nranks: Any
    local_rank: Any
    epoch: int
    def __init__(
        self,
        dataset: Any,
        batch_size: Any,
        num_replicas: Any = ...,
        rank: Any = ...,
        shuffle: bool = ...,
        drop_last: bool = ...,
    ) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
class IterableDataset:
    def __iter__(self) -> Iterator[Any]: ...
def batched(items: Any, size: int, drop_last: Any) -> None: ...
def check_samples(what: Any, dataset: Any) -> None: ...
def check_size(batch_size: Any) -> None: ...
