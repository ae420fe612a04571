"""The spellings of the 1.x interface: ``fleet.fluid``."""

from fleet._absent import absent as _absent
from fleet import core, regularizer
from fleet._datasets import DatasetFactory
from fleet._attributes import BuildStrategy, ExecutionStrategy, ParamAttr
from fleet._executor import (
    CPUPlace,
    CUDAPlace,
    Executor,
    Scope,
    global_scope,
    is_compiled_with_cuda,
    scope_guard,
)
from fleet._loaders import DataFeeder
from fleet._framework import (
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    device_guard,
    name_scope,
    program_guard,
)
from fleet.utils import unique_name

from fleet.static import CompiledProgram, ParallelExecutor, cpu_places, cuda_places

from . import backward, clip, contrib, incubate, initializer, io, layers, optimizer
from .layers import _embedding as embedding
from .layers import _one_hot as one_hot
from .transpiler import DistributeTranspiler, DistributeTranspilerConfig
from fleet.static import data

__getattr__ = _absent(__name__)
