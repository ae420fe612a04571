from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path


class Downloader:
    def download_from_hdfs(
        self,
        fs_yaml: Any,
        local_path: str = ...,
        shard_num: int = ...,
        shard_id: int = ...,
    ) -> None: ...
    def download_from_bos(
        self,
        fs_yaml: Any,
        local_path: str = ...,
        shard_num: int = ...,
        shard_id: int = ...,
    ) -> None: ...
