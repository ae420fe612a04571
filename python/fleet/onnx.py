"""Models as ONNX files, for other runtimes. The command ``fleet export --onnx`` does the same."""

import os

from fleet import _fleet
from fleet._absent import absent as _absent
from fleet._executor import global_scope
from fleet._files import _model_vars


def export(
    path,
    feed_vars,
    fetch_vars,
    executor=None,
    program=None,
    opset_version=17,
    max_table_rows=10_000_000,
):
    """Writes the part of a program that computes ``fetch_vars`` from ``feed_vars`` as an ONNX file.

    The values of its variables are those in the global scope. Dimensions of unknown size have names
    in the file: ``batch`` for the first one. ``opset_version`` is 17 to 23.
    """
    program, feeds, targets = _model_vars(feed_vars, fetch_vars, program)
    _fleet.export_onnx(
        os.fspath(path),
        program._cell,
        feeds,
        targets,
        global_scope()._cell,
        (opset_version, max_table_rows),
    )


def export_model(model_dir, path, opset_version=17, max_table_rows=10_000_000):
    """Writes a model that `fleet.static.save_inference_model` saved as an ONNX file.

    ``model_dir`` may also be a save of a job with parameter servers that has a model: tables become
    constants with the saved rows, and other ids read as zeros.
    """
    options = (opset_version, max_table_rows)
    _fleet.export_onnx_model(os.fspath(model_dir), os.fspath(path), options)


__getattr__ = _absent(__name__)
