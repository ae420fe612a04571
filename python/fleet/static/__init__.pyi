from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._attributes import BuildStrategy as BuildStrategy
from fleet._attributes import ExecutionStrategy as ExecutionStrategy
from fleet._attributes import ParamAttr as ParamAttr
from fleet._backward import append_backward as append_backward
from fleet._backward import gradients as gradients
from fleet._executor import CPUPlace as CPUPlace
from fleet._executor import CUDAPlace as CUDAPlace
from fleet._executor import Executor as Executor
from fleet._executor import FetchHandler as FetchHandler
from fleet._executor import Scope as Scope
from fleet._executor import global_scope as global_scope
from fleet._executor import scope_guard as scope_guard
from fleet._files import load_inference_model as load_inference_model
from fleet._files import load_vars as load_vars
from fleet._files import save_inference_model as save_inference_model
from fleet._files import save_vars as save_vars
from fleet._framework import Program as Program
from fleet._framework import Variable as Variable
from fleet._framework import default_main_program as default_main_program
from fleet._framework import default_startup_program as default_startup_program
from fleet._framework import device_guard as device_guard
from fleet._framework import name_scope as name_scope
from fleet._framework import program_guard as program_guard
from fleet.static import compiled as compiled
from fleet.static import nn as nn
from fleet.static.compiled import CompiledProgram as CompiledProgram
from fleet.static.compiled import ParallelExecutor as ParallelExecutor

def accuracy(
    input: Variable,
    label: Variable,
    k: int = ...,
    correct: Any = ...,
    total: Any = ...,
) -> Variable: ...
def auc(
    input: Variable,
    label: Variable,
    curve: str = ...,
    num_thresholds: int = ...,
    topk: int = ...,
    slide_steps: int = ...,
) -> tuple[Variable, Variable, list[Variable]]: ...
def cpu_places(device_count: int | None = ...) -> list[Any]: ...
def create_global_var(
    shape: Sequence[int | None],
    value: Any,
    dtype: str,
    persistable: bool = ...,
    force_cpu: bool = ...,
    name: str | None = ...,
) -> Variable: ...
def create_parameter(
    shape: Sequence[int | None],
    dtype: str,
    name: str | None = ...,
    attr: Attr = ...,
    is_bias: bool = ...,
    default_initializer: Any = ...,
) -> Variable: ...
def cuda_places(device_ids: Any = ...) -> list[Any]: ...
def data(
    name: str,
    shape: Sequence[int | None],
    dtype: str = ...,
    lod_level: int = ...,
) -> Variable: ...
