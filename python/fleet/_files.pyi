from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._executor import Executor as Executor
from fleet._executor import global_scope as global_scope
from fleet._framework import Program as Program
from fleet._framework import Variable as Variable
from fleet._framework import default_main_program as default_main_program

def load_inference_model(path_prefix: Path, executor: Executor) -> list[Any]: ...
def load_params(
    executor: Executor,
    dirname: str,
    main_program: Program | None = ...,
    filename: str | None = ...,
) -> None: ...
def load_persistables(
    executor: Executor,
    dirname: str,
    main_program: Program | None = ...,
    filename: str | None = ...,
) -> None: ...
def load_vars(
    executor: Executor,
    dirname: str,
    main_program: Program | None = ...,
    vars: Sequence[Variable | str] | None = ...,
    predicate: Callable[..., Any] | None = ...,
    filename: str | None = ...,
) -> None: ...
def save_inference_model(
    path_prefix: Path,
    feed_vars: Sequence[Variable | str],
    fetch_vars: Sequence[Variable | str],
    executor: Executor,
    program: Program | None = ...,
) -> None: ...
def save_params(
    executor: Executor,
    dirname: str,
    main_program: Program | None = ...,
    filename: str | None = ...,
) -> None: ...
def save_persistables(
    executor: Executor | str | None,
    dirname: str,
    main_program: Program | None = ...,
    filename: str | None = ...,
) -> None: ...
def save_vars(
    executor: Executor,
    dirname: str,
    main_program: Program | None = ...,
    vars: Sequence[Variable | str] | None | None = ...,
    predicate: Callable[..., Any] | None = ...,
    filename: str | None = ...,
) -> None: ...
