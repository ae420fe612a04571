"""``fleet.fluid.io``."""

from fleet._absent import absent as _absent
from fleet import _files
from fleet._loaders import DataLoader, PyReader
from fleet.reader import batch, buffered, cache, chain, firstn, map_readers, shuffle
from fleet._files import (
    load_params,
    load_persistables,
    load_vars,
    save_params,
    save_persistables,
    save_vars,
)


def save_inference_model(
    dirname,
    feeded_var_names,
    target_vars,
    executor,
    main_program=None,
    model_filename=None,
    params_filename=None,
    export_for_deployment=True,
):
    """Saves the part of a program that computes ``target_vars``."""
    _files.save_inference_model(dirname, feeded_var_names, target_vars, executor, main_program)


def load_inference_model(dirname, executor, model_filename=None, params_filename=None):
    """Loads a model: the program, the names of its inputs, and its targets."""
    return _files.load_inference_model(dirname, executor)


__getattr__ = _absent(__name__)
