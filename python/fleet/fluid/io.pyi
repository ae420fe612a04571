from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._executor import Executor as Executor
from fleet._files import load_params as load_params
from fleet._files import load_persistables as load_persistables
from fleet._files import load_vars as load_vars
from fleet._files import save_params as save_params
from fleet._files import save_persistables as save_persistables
from fleet._files import save_vars as save_vars
from fleet._framework import Program as Program
from fleet._framework import Variable as Variable
from fleet._loaders import DataLoader as DataLoader
from fleet._loaders import PyReader as PyReader
from fleet.reader import batch as batch
from fleet.reader import buffered as buffered
from fleet.reader import cache as cache
from fleet.reader import chain as chain
from fleet.reader import firstn as firstn
from fleet.reader import map_readers as map_readers
from fleet.reader import shuffle as shuffle

def load_inference_model(
    dirname: str,
    executor: Executor,
    model_filename: Any = ...,
    params_filename: Any = ...,
) -> list[Any]: ...
def save_inference_model(
    dirname: str,
    feeded_var_names: Sequence[Variable | str],
    target_vars: Sequence[Variable | str],
    executor: Executor,
    main_program: Program | None = ...,
    model_filename: Any = ...,
    params_filename: Any = ...,
    export_for_deployment: bool = ...,
) -> None: ...
