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


def export_model(model_dir, path, opset_version=None, max_table_rows=10_000_000):
    """Writes a model that `fleet.static.save_inference_model` saved as an ONNX file.

    ``model_dir`` may also be a save of a job with parameter servers that has a model: tables become
    constants with the saved rows, and other ids read as zeros. Of the model folder of a job file,
    the inputs of the ONNX file are the columns of the data: numbers, and `category_hash` of texts.
    ``opset_version`` is 17 by default, and 18 for a job with hash buckets or crosses.
    """
    options = (opset_version, max_table_rows)
    _fleet.export_onnx_model(os.fspath(model_dir), os.fspath(path), options)


def category_hash(text):
    """Returns the hash by which models of job files know a category, as a signed integer of 64
    bits. None, NaN and the empty text, which are missing values, give 0."""
    text = "" if text is None or text != text else str(text).strip()
    if not text:
        return 0

    def mix(word):
        product = word * 0xE7037ED1A0B428DB
        return (product ^ product >> 64) & 0xFFFFFFFFFFFFFFFF

    data = text.encode()
    state = 0xA0761D6478BD642F ^ len(data) * 0xE7037ED1A0B428DB & 0xFFFFFFFFFFFFFFFF
    for at in range(0, len(data), 8):
        state = mix(state ^ int.from_bytes(data[at : at + 8], "little"))
    found = mix(state ^ 0x8EBC6AF09C88C6E3) or 1
    return found - (found >> 63 << 64)


__getattr__ = _absent(__name__)
