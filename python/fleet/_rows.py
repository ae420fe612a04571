"""Inputs of programs, and the arrays that fill them: from rows, and from whole batches."""

import math

from fleet._framework import Variable, default_main_program


class Feed:
    """An input: its name, shape and type, as they are when a loader is made."""

    __slots__ = ("name", "shape", "dtype", "ragged", "program")

    def __init__(self, var):
        self.name = var.name
        self.shape = var.shape
        self.dtype = var.dtype
        self.ragged = var.lod_level > 0
        self.program = var.program

    @property
    def row(self):
        """The shape of one row."""
        return self.shape[1:]

    @property
    def width(self):
        """The number of values in a row, or None if it is not known."""
        return None if any(size < 0 for size in self.row) else math.prod(self.row)


def feeds(what, feed_list, program=None):
    """Returns the inputs of a list of variables or names."""
    if isinstance(feed_list, (str, Variable)) or not hasattr(feed_list, "__iter__"):
        raise TypeError(f"{what}: expected a list of variables, got {feed_list!r}")
    found = []
    for var in feed_list:
        if isinstance(var, str):
            var = (program or default_main_program()).var(var)
        if not isinstance(var, Variable):
            raise TypeError(f"{what}: expected variables, got {var!r}")
        found.append(Feed(var))
    if not found:
        raise ValueError(f"{what}: expected one or more variables, got none")
    return found


def stack(feeds, samples, what="the batch"):
    """Returns the arrays of a batch by name, from samples: a field for each input."""
    fields = [_fields(feeds, sample, row, what) for row, sample in enumerate(samples)]
    return {
        feed.name: _column(feed, [field[index] for field in fields], what)
        for index, feed in enumerate(feeds)
    }


def _fields(feeds, sample, row, what):
    if isinstance(sample, dict):
        missing = [feed.name for feed in feeds if feed.name not in sample]
        if missing:
            raise ValueError(f"row {row} of {what} has no input '{missing[0]}'")
        return [sample[feed.name] for feed in feeds]
    if isinstance(sample, (list, tuple)):
        fields = list(sample)
    else:
        fields = [sample]
    if len(fields) == len(feeds):
        return fields
    if len(feeds) == 1 and isinstance(sample, list):
        return [sample]
    names = ", ".join(feed.name for feed in feeds)
    raise ValueError(
        f"row {row} of {what} has the wrong number of fields: "
        f"expected {len(feeds)} ({names}), got {len(fields)}"
    )


def _column(feed, values, what):
    import numpy as np

    from fleet._arrays import check_mask, converted

    for row, value in enumerate(values):
        if isinstance(value, np.ma.MaskedArray):
            check_mask(_row_of(feed, row, what), value)
    if feed.ragged:
        return _joined(feed, values, what)
    if not values:
        return np.zeros([0, *[max(size, 1) for size in feed.row]], feed.dtype)
    try:
        array = np.asarray(values)
    except ValueError:
        array = None
    if array is None or array.dtype == object:
        array = _one_by_one(feed, values, what)
    if array.dtype != feed.dtype:
        array = converted(array, feed.dtype, lambda row: _row_of(feed, row, what))
    width = feed.width
    if width is None:
        if array.ndim != len(feed.shape) and len(feed.row) == 1:
            array = array.reshape(len(values), -1)
        _check_shape(feed, array, what)
        return array
    if array.size != len(values) * width:
        raise ValueError(
            f"{_row_of(feed, 0, what)} has the wrong shape: "
            f"expected {list(feed.row)}, got {list(array.shape[1:])}"
        )
    return array.reshape(len(values), *feed.row)


def _joined(feed, values, what):
    """Returns the values of all rows, one after another."""
    import numpy as np

    from fleet._arrays import converted

    rows = []
    for row, value in enumerate(values):
        array = np.asarray(value).reshape(-1, 1)
        if array.dtype != feed.dtype:
            array = converted(array, feed.dtype, lambda _, row=row: _row_of(feed, row, what))
        rows.append(array)
    return np.concatenate(rows) if rows else np.zeros([0, 1], feed.dtype)


def _one_by_one(feed, values, what):
    """Returns the rows as an array, or raises the error for the first row that does not fit."""
    import numpy as np

    rows = []
    for row, value in enumerate(values):
        place = _row_of(feed, row, what)
        try:
            array = np.asarray(value)
        except ValueError:
            array = np.asarray(None)
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{place}: expected numbers of {feed.dtype}, got {short(value)}")
        if feed.width is not None:
            if array.size != feed.width:
                raise ValueError(
                    f"{place} has the wrong shape: "
                    f"expected {list(feed.row)}, got {list(array.shape)}"
                )
            array = array.reshape(feed.row)
        if rows and array.shape != rows[0].shape:
            raise ValueError(
                f"{place} has another shape than row 0: "
                f"expected {list(rows[0].shape)}, got {list(array.shape)}\n  "
                "help: pad the rows, or give the input lod_level=1"
            )
        rows.append(array)
    return np.stack(rows)


def _row_of(feed, row, what):
    return f"row {row} of {what}: input '{feed.name}'"


def whole(feeds, batch, what):
    """Returns the arrays of a batch by name, from whole arrays."""
    from fleet._arrays import as_array

    if isinstance(batch, dict):
        missing = [feed.name for feed in feeds if feed.name not in batch]
        if missing:
            raise ValueError(f"{what} has no input '{missing[0]}'")
        values = [batch[feed.name] for feed in feeds]
    else:
        values = list(batch) if isinstance(batch, (list, tuple)) else [batch]
    if len(values) != len(feeds):
        names = ", ".join(feed.name for feed in feeds)
        raise ValueError(
            f"{what} has the wrong number of arrays: "
            f"expected {len(feeds)} ({names}), got {len(values)}"
        )
    made = {}
    for feed, value in zip(feeds, values):
        name = f"{what}: input '{feed.name}'"
        array = as_array(name, value, feed.dtype)
        _check_shape(feed, array, what)
        made[feed.name] = array
    return made


def _check_shape(feed, array, what):
    if feed.ragged:
        return
    same = array.ndim == len(feed.shape) and all(
        size < 0 or size == got for size, got in zip(feed.shape, array.shape)
    )
    if not same:
        raise ValueError(
            f"{what}: input '{feed.name}' has the wrong shape: "
            f"expected {list(feed.shape)}, got {list(array.shape)}"
        )


def short(value):
    """Returns a value as errors show it."""
    text = repr(value)
    return (text if len(text) <= 60 else text[:60] + "..") + f" ({type(value).__name__})"
