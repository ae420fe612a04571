from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._loaders import GeneratorLoader as GeneratorLoader

class TableDataset:
    def __init__(self, cell: Any, made: Any, shuffle: Any, seed: Any) -> None: ...
    def __iter__(self) -> Iterator[dict[str, Any]]: ...
    def __len__(self) -> int: ...
def from_table(
    table: Any,
    use_var: Any,
    batch_size: int = ...,
    shuffle: bool = ...,
    drop_last: bool = ...,
    seed: int = ...,
    columns: Any = ...,
    threads: int = ...,
) -> Any: ...
def from_torch(loader: Any, feed_list: Any, capacity: int = ...) -> Any: ...
