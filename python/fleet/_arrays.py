"""Values that are not arrays in the executor's form: converted, or refused with the reason."""

import numpy as np


def as_array(what, value, dtype):
    """Returns ``value`` as a contiguous array of this type, in native byte order.

    An array must have the type already, in any layout and byte order, or be a tensor of another
    library, which has ``__array__`` or ``__dlpack__``. Numbers and lists are
    converted if the type can hold them.
    """
    wanted = np.dtype(dtype)
    if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
        array = _read(what, value)
        if array.dtype.newbyteorder("=") != wanted:
            raise ValueError(_wrong(what, dtype, array))
        return _contiguous(array, wanted)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{what}: expected {dtype}, got ragged or too large values ({error})")
    if array.dtype == object:
        raise ValueError(_wrong(what, dtype, array))
    if not _converts(array, wanted):
        raise ValueError(_wrong(what, dtype, array))
    with np.errstate(over="ignore"):
        converted = _contiguous(array, wanted)
    if wanted.kind == "f" and np.any(np.isinf(converted) & np.isfinite(array)):
        raise ValueError(f"{what}: expected {dtype}, got a number that is too large for it")
    return converted


def _read(what, value):
    """Returns an array, or a tensor of another library, as an array of NumPy."""
    try:
        return np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        # Such as a tensor of a GPU, or one that records gradients.
        raise ValueError(f"{what}: cannot read {type(value).__name__} as an array: {error}")


def _contiguous(array, dtype):
    # `ascontiguousarray` makes one dimension of none.
    return np.array(array, dtype=dtype, order="C", copy=True)


def _converts(array, dtype):
    """Returns whether numbers of Python have a value of this type."""
    if array.dtype == dtype:
        return True
    if dtype.kind == "f":
        return array.dtype.kind in "iuf"
    if dtype.kind in "iu" and array.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.size == 0:
            return True
        return int(array.min()) >= limits.min and int(array.max()) <= limits.max
    return False


def _wrong(what, dtype, array):
    text = f"{what} has the wrong type: expected {dtype}, got {array.dtype}{list(array.shape)}"
    if array.dtype == object:
        return (
            f"{text}\n  help: the rows have different lengths, or the values are not numbers; "
            "use an array of numbers"
        )
    return f"{text}\n  help: convert it first: value.astype('{dtype}')"
