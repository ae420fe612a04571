from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._framework import Program as Program
from fleet._prefetch import Prefetch as Prefetch
from fleet._prefetch import in_threads as in_threads
from fleet._prefetch import map_closed as map_closed
from fleet._samplers import BatchSampler as BatchSampler
from fleet._samplers import IterableDataset as IterableDataset
from fleet._samplers import batched as batched
from fleet._samplers import check_samples as check_samples
from fleet._samplers import check_size as check_size
from fleet.core import EOFException as EOFException

class DataFeeder:
    def __init__(self, feed_list: Any, place: Any = ..., program: Program | None = ...) -> None: ...
    def feed(self, iterable: Any) -> Any: ...
    def decorate_reader(
        self,
        reader: Any,
        multi_devices: bool = ...,
        num_places: Any = ...,
        drop_last: bool = ...,
    ) -> Any: ...
class DataLoader(_Loader):
    dataset: Any
    batch_size: Any
    drop_last: Any
    num_workers: Any
    batch_sampler: Any
    def __init__(
        self,
        dataset: Any,
        feed_list: Any = ...,
        places: Any = ...,
        return_list: Any = ...,
        batch_sampler: Any = ...,
        batch_size: int | None = ...,
        shuffle: bool = ...,
        drop_last: bool = ...,
        collate_fn: Any = ...,
        num_workers: int = ...,
        use_buffer_reader: bool = ...,
        use_shared_memory: bool = ...,
        timeout: int = ...,
        worker_init_fn: Any = ...,
        persistent_workers: bool = ...,
        prefetch_factor: int = ...,
    ) -> None: ...
    def __len__(self) -> int: ...
    @staticmethod
    def from_generator(
        feed_list: Any = ...,
        capacity: Any = ...,
        use_double_buffer: bool = ...,
        iterable: bool = ...,
        return_list: bool = ...,
        use_multiprocess: bool = ...,
        drop_last: bool = ...,
    ) -> Any: ...
class GeneratorLoader(_Loader):
    def __init__(self, feeds: Any, capacity: Any, iterable: Any, return_list: Any) -> None: ...
    def set_sample_generator(
        self,
        reader: Any,
        batch_size: Any,
        drop_last: bool = ...,
        places: Any = ...,
    ) -> Any: ...
    def set_sample_list_generator(self, reader: Any, places: Any = ...) -> Any: ...
    def set_batch_generator(self, reader: Any, places: Any = ...) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def start(self) -> None: ...
    def reset(self) -> None: ...
class PyReader(GeneratorLoader):
    def __init__(
        self,
        feed_list: Any = ...,
        capacity: Any = ...,
        use_double_buffer: bool = ...,
        iterable: bool = ...,
        return_list: bool = ...,
    ) -> None: ...
    def decorate_sample_generator(
        self,
        sample_generator: Any,
        batch_size: Any,
        drop_last: bool = ...,
        places: Any = ...,
    ) -> None: ...
    def decorate_sample_list_generator(self, reader: Any, places: Any = ...) -> None: ...
    def decorate_batch_generator(self, reader: Any, places: Any = ...) -> None: ...
    def decorate_paddle_reader(self, reader: Any, places: Any = ...) -> None: ...
    def decorate_tensor_provider(self, reader: Any, places: Any = ...) -> None: ...
class _Loader:
    def __init__(self, feeds: Any, capacity: Any, return_list: Any) -> None: ...
    def __call__(self) -> Iterator[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...
