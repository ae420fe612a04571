from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._executor import Executor as Executor
from fleet._executor import global_scope as global_scope
from fleet._framework import Program as Program
from fleet._framework import Variable as Variable

def category_hash(text: str | float | None) -> int: ...
def export(
    path: Path,
    feed_vars: Sequence[Variable | str],
    fetch_vars: Sequence[Variable | str],
    executor: Executor | None = ...,
    program: Program | None = ...,
    opset_version: int = ...,
    max_table_rows: int = ...,
) -> None: ...
def export_model(
    model_dir: Any,
    path: Path,
    opset_version: int | None = ...,
    max_table_rows: int = ...,
) -> None: ...
