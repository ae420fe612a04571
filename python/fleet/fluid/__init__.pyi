from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet import core as core
from fleet import regularizer as regularizer
from fleet._attributes import BuildStrategy as BuildStrategy
from fleet._attributes import ExecutionStrategy as ExecutionStrategy
from fleet._attributes import ParamAttr as ParamAttr
from fleet._datasets import DatasetFactory as DatasetFactory
from fleet._executor import CPUPlace as CPUPlace
from fleet._executor import CUDAPlace as CUDAPlace
from fleet._executor import Executor as Executor
from fleet._executor import Scope as Scope
from fleet._executor import global_scope as global_scope
from fleet._executor import is_compiled_with_cuda as is_compiled_with_cuda
from fleet._executor import scope_guard as scope_guard
from fleet._framework import Program as Program
from fleet._framework import Variable as Variable
from fleet._framework import default_main_program as default_main_program
from fleet._framework import default_startup_program as default_startup_program
from fleet._framework import device_guard as device_guard
from fleet._framework import name_scope as name_scope
from fleet._framework import program_guard as program_guard
from fleet._loaders import DataFeeder as DataFeeder
from fleet.fluid import backward as backward
from fleet.fluid import clip as clip
from fleet.fluid import contrib as contrib
from fleet.fluid import incubate as incubate
from fleet.fluid import initializer as initializer
from fleet.fluid import io as io
from fleet.fluid import layers as layers
from fleet.fluid import optimizer as optimizer
from fleet.fluid import rates as rates
from fleet.fluid import transpiler as transpiler
from fleet.fluid.transpiler import DistributeTranspiler as DistributeTranspiler
from fleet.fluid.transpiler import DistributeTranspilerConfig as DistributeTranspilerConfig
from fleet.static import cpu_places as cpu_places
from fleet.static import cuda_places as cuda_places
from fleet.static import data as data
from fleet.static.compiled import CompiledProgram as CompiledProgram
from fleet.static.compiled import ParallelExecutor as ParallelExecutor
from fleet.utils import unique_name as unique_name

def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = ...,
    is_distributed: bool = ...,
    padding_idx: int | None = ...,
    param_attr: Attr = ...,
    dtype: str = ...,
) -> Any: ...
def one_hot(input: Variable, depth: Any) -> Any: ...
