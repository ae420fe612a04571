"""Programs, executors and what belongs to them: ``fleet.static``."""

from fleet._absent import spelled as _spelled
from fleet._absent import absent as _absent
from fleet._attributes import BuildStrategy, ExecutionStrategy, ParamAttr
from fleet._backward import append_backward, gradients
from fleet._executor import (
    CPUPlace,
    CUDAPlace,
    Executor,
    FetchHandler,
    Scope,
    global_scope,
    scope_guard,
)
from fleet._files import (
    load_inference_model,
    load_vars,
    save_inference_model,
    save_vars,
)
from fleet._framework import (
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    device_guard,
    name_scope,
    program_guard,
)
from fleet._layers import define as _define

from . import nn
from .compiled import CompiledProgram, ParallelExecutor

_define(
    globals(),
    """
    data(name, shape, dtype='float32', lod_level=0)
    create_parameter(shape, dtype, name=None, attr=None, is_bias=False, default_initializer=None)
    create_global_var(shape, value, dtype, persistable=False, force_cpu=False, name=None)
    _accuracy(input, label, k=1) = accuracy
    auc(input, label, curve='ROC', num_thresholds=4095, topk=1, slide_steps=1)
    """,
)


def accuracy(input, label, k=1, correct=None, total=None):
    """Returns the share of rows whose label is among the k largest values."""
    if correct is not None or total is not None:
        raise NotImplementedError(
            _spelled(
                "accuracy(): correct and total are not supported\n  "
                "help: multiply the accuracy by the number of rows: fleet.shape(label)[0]"
            )
        )
    return _accuracy(input, label, k)  # noqa: F821


def cuda_places(device_ids=None):
    """Returns places for GPUs: Fleet computes on the CPU through each, and warns once."""
    ids = [0] if device_ids is None else list(device_ids)
    return [CUDAPlace(id) for id in ids]


def cpu_places(device_count=None):
    """Returns places for the cores of this machine; the executor uses all of them through one."""
    return [CPUPlace() for _ in range(device_count or 1)]


__getattr__ = _absent(__name__)
