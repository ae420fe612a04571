"""Values that are not arrays in the executor's form: converted, or refused with the reason."""

import numpy as np


def as_array(what, value, dtype):
    """Returns ``value`` as a contiguous array of this type, in native byte order.

    An array must have the type already, in any layout and byte order, or be a tensor of another
    library, which has ``__array__`` or ``__dlpack__``. Numbers and lists are converted as
    `converted` does.
    """
    wanted = np.dtype(dtype)
    if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
        check_mask(what, value)
        array = _read(what, value)
        if array.dtype.newbyteorder("=") != wanted:
            raise ValueError(_wrong_type(what, dtype, array))
        return _contiguous(array, wanted)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError, TypeError):
        array = None
    if array is None or array.dtype.kind not in "biuf":
        raise ValueError(f"{what}: expected {dtype}, got {_not_numbers(value, array)}")
    return _contiguous(converted(array, dtype, lambda _: what), wanted)


def converted(array, dtype, place):
    """Returns an array as another type. Floats are rounded to the nearest float; all else keeps its
    value, or is an error. ``place`` returns how an error names a row."""
    wanted, kind = np.dtype(dtype), array.dtype.kind
    if array.dtype == wanted:
        return array
    if kind not in "biuf" or wanted.kind not in "iuf":
        raise ValueError(f"{place(0)}: expected numbers of {dtype}, got {array.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        made = array.astype(wanted)
    if wanted.kind == "f":
        if kind == "f":
            wrong = np.isinf(made) & np.isfinite(array)
        else:
            wrong = _inexact(array, made)
    else:
        limits = np.iinfo(wanted)
        wrong = np.zeros(array.shape, bool)
        if kind == "f":
            # The limits of int64 are not exact as floats.
            wrong = ~((array >= float(limits.min)) & (array < float(limits.max) + 1.0))
            wrong |= np.floor(array) != array
        elif kind in "iu":
            wrong = (array < limits.min) | (array > limits.max)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        got = array[index]
        text = f"{place(index[0] if index else 0)}: expected {dtype}, got {got}"
        if wanted.kind == "f":
            reason = "is too large for it" if kind == "f" else "is not exact in it"
            text = f"{text}, which {reason}"
        raise ValueError(text)
    return made


def _inexact(array, made):
    """Returns where integers have no value among floats."""
    bits = np.finfo(made.dtype).nmant + 1
    if array.dtype.kind == "b" or array.dtype.itemsize * 8 <= bits or not array.size:
        return np.zeros(array.shape, bool)
    limit = 2**bits
    if int(array.min()) >= -limit and int(array.max()) <= limit:
        return np.isinf(made)
    # Exact, where NumPy compares an integer with a float as floats.
    pairs = zip(array.ravel().tolist(), made.ravel().tolist())
    wrong = [number != float_ for number, float_ in pairs]
    return np.array(wrong).reshape(array.shape)


def check_mask(what, value):
    """Refuses a masked array, whose mask a program cannot see."""
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            f"{what}: masked arrays are not supported\n  "
            "help: fill the masked values first: value.filled(0)"
        )


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


def _not_numbers(value, array):
    """Describes a value that is not an array of numbers; ``array`` is NumPy's reading of it."""
    for item in _items(value):
        if isinstance(item, int):
            if not -(2**63) <= item < 2**64:
                return f"an integer that is too large: {_short(item)}"
        elif item is None or not isinstance(item, float):
            kind = type(item).__name__
            return "None" if item is None else f"{_short(item)} ({kind}), which is not a number"
    if array is None:
        return "ragged rows\n  help: pad the rows to one length"
    return f"values of {array.dtype}"


def _items(value):
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _items(item)
    elif not hasattr(value, "__array__"):
        yield value


def _short(value):
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to write integers of more than some thousand digits.
        return f"of {value.bit_length()} bits"
    return text if len(text) <= 60 else text[:60] + ".."


def _wrong_type(what, dtype, array):
    text = f"{what} has the wrong type: expected {dtype}, got {array.dtype}{list(array.shape)}"
    if array.dtype.kind in "biuf":
        return f"{text}\n  help: convert it first: value.astype('{dtype}')"
    return f"{text}\n  help: use an array of numbers"
