"""Tables and loaders of other libraries as sources of batches. None of them is imported here."""

import math

from fleet import _checks, _fleet, _rows
from fleet._loaders import GeneratorLoader


def from_table(
    table, use_var, batch_size=1, shuffle=False, drop_last=False, seed=0, columns=None, threads=1
):
    """Returns a dataset of the rows of a table: a DataFrame of pandas, a Table of pyarrow, or a
    dict of arrays by name.

    It is for `Executor.train_from_dataset`, and an iterable of feeds. Each input takes the column
    of its name; ``columns`` has other names, or a list of names for an input of several columns:
    ``columns={"dense": ["age", "price"]}``. Numbers are converted to the type of the input if it
    has their value; floats are rounded. ``shuffle=True`` shuffles the rows for each pass, by ``seed``.
    """
    feeds = _rows.feeds("use_var", use_var)
    batch_size = _checks.integer("batch_size", batch_size, 1)
    threads = _checks.integer("threads", threads, 1, 4096)
    seed = _checks.seed("seed", seed)
    columns = dict(columns or {})
    unknown = [name for name in columns if name not in [feed.name for feed in feeds]]
    if unknown:
        raise ValueError(f"columns: '{unknown[0]}' is not the name of an input of use_var")
    made = [(feed.name, _values(table, feed, columns), feed.dtype) for feed in feeds]
    cell = _fleet.DatasetCell.of_arrays(made, batch_size, bool(drop_last), threads)
    return TableDataset(cell, made, shuffle, seed)


class TableDataset:
    """The rows of a table: see `from_table`."""

    def __init__(self, cell, made, shuffle, seed):
        self._cell = cell
        self._names = [name for name, _, _ in made]
        self._rows = len(made[0][1])
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0

    def _source(self):
        if self._shuffle:
            self._cell.shuffle_for_epoch(self._seed, self._epoch)
            self._epoch += 1
        return self._cell

    def _epochs(self):
        """Returns the dataset for a trainer, which shuffles it in each epoch."""
        self._cell.shuffle_by(self._seed if self._shuffle else None)
        return self._cell

    def __iter__(self) -> "Iterator[dict[str, Any]]":
        """Iterates over the batches of a pass, as feeds: dicts of arrays."""
        return self._source().batches()

    def __len__(self):
        """Returns the number of batches of a pass."""
        return self._cell.batch_count()

    def __repr__(self):
        return f"TableDataset([{', '.join(self._names)}], {self._rows} rows)"


def _values(table, feed, columns):
    """Returns the array of an input: a row for each row of the table."""
    import numpy as np

    if feed.ragged:
        raise NotImplementedError(
            f"input '{feed.name}': ragged rows of a table are not supported\n  "
            "help: pad the rows, or use DataLoader.from_generator"
        )
    names = columns.get(feed.name, feed.name)
    names = [names] if isinstance(names, str) else list(names)
    parts = []
    for name in names:
        array = _column(table, name)
        array = _numbers(array, name, feed)
        parts.append(array.reshape(len(array), math.prod(array.shape[1:])))
    counts = {len(part) for part in parts}
    if len(counts) > 1:
        raise ValueError(f"the columns {names} have different numbers of rows: {sorted(counts)}")
    array = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    width = feed.width
    if width is None:
        row = [array.shape[1] if size < 0 else size for size in feed.row]
        if math.prod(row) == array.shape[1]:
            return np.ascontiguousarray(array.reshape(len(array), *row))
    elif array.shape[1] == width:
        return np.ascontiguousarray(array.reshape(len(array), *feed.row))
    raise ValueError(
        f"the columns of input '{feed.name}' have the wrong number of values in a row: "
        f"expected {list(feed.row)}, got {array.shape[1]} of {', '.join(map(repr, names))}"
    )


def _numbers(array, name, feed):
    """Returns the values of a column as the type of the input."""
    import numpy as np

    from fleet._arrays import converted

    def place(row):
        return f"column '{name}', row {row}"

    if array.dtype == object:
        array = _from_objects(array, place, feed)
    if array.dtype.kind not in "biuf":
        kind = "strings" if array.dtype.kind in "US" else str(array.dtype)
        raise ValueError(
            f"{place(0)}: expected numbers of {feed.dtype}, got {kind}\n  "
            "help: encode the column as numbers first"
        )
    return converted(np.asarray(array), feed.dtype, place)


def _from_objects(array, place, feed):
    """Returns the numbers of a column of objects, which may be numbers or lists of one length."""
    import numpy as np

    rows, first = [], None
    for row, value in enumerate(array):
        if value is None:
            raise ValueError(f"{place(row)} has no value{_MISSING}")
        try:
            made = np.asarray(value)
        except ValueError:
            made = np.asarray(None)
        if made.dtype.kind not in "biuf":
            raise ValueError(
                f"{place(row)}: expected numbers of {feed.dtype}, got {_rows.short(value)}\n  "
                "help: encode the column as numbers first"
            )
        first = made.shape if first is None else first
        if made.shape != first:
            raise ValueError(
                f"{place(row)} has another shape than row 0: "
                f"expected {list(first)}, got {list(made.shape)}"
            )
        rows.append(made)
    return np.stack(rows) if rows else np.zeros([0], feed.dtype)


_MISSING = "\n  help: fill or drop the rows with missing values first"


def _column(table, name):
    """Returns the column of a table as an array of NumPy, without missing values."""
    import numpy as np

    if isinstance(table, dict):
        _check_name(name, list(table))
        return _dense(table[name], name)
    if hasattr(table, "iloc"):
        _check_name(name, [str(column) for column in table.columns])
        return _pandas_column(table[name], name)
    if hasattr(table, "schema") and hasattr(table, "column"):
        _check_name(name, list(table.schema.names))
        return _arrow_column(table.column(name), name)
    raise TypeError(
        "table: expected a DataFrame of pandas, a Table of pyarrow or a dict of arrays, "
        f"got {_rows.short(table)}"
    )


def _dense(values, name):
    import numpy as np

    from fleet._arrays import check_mask

    check_mask(f"column '{name}'", values)
    try:
        array = np.asarray(values)
    except ValueError:
        array = np.empty(len(values), dtype=object)
        array[:] = list(values)
    if array.ndim == 0:
        raise ValueError(f"column '{name}': expected an array with a row for each record, got one")
    return array


def _pandas_column(series, name):
    if series.ndim != 1:
        raise ValueError(f"the table has several columns '{name}'")
    missing = series.isna().to_numpy()
    _check_missing(missing, name)
    array = series.to_numpy()
    if array.dtype == object:
        # Types of pandas with missing values have arrays of objects.
        kind = getattr(series.dtype, "numpy_dtype", None)
        if kind is not None and kind.kind in "biuf":
            return array.astype(kind)
    return array


def _arrow_column(column, name):
    import numpy as np

    if column.null_count:
        _check_missing(np.asarray(column.is_null()), name)
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if hasattr(column, "chunks"):
        column = column.chunk(0) if column.num_chunks else []
    if hasattr(column, "values") and hasattr(column, "flatten"):
        return _arrow_lists(column, name)
    return np.asarray(column)


def _arrow_lists(column, name):
    """Returns the rows of a column of lists, which must have one length."""
    import numpy as np

    if not len(column):
        return np.zeros([0, 0])
    lengths = np.asarray(column.value_lengths())
    wrong = np.flatnonzero(lengths != lengths[0])
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"column '{name}', row {row} has another length than row 0: "
            f"expected {int(lengths[0])}, got {int(lengths[row])}"
        )
    flat = column.flatten()
    if flat.null_count:
        first = int(np.flatnonzero(np.asarray(flat.is_null()))[0])
        raise ValueError(f"column '{name}', row {first // int(lengths[0])} has no value{_MISSING}")
    return np.asarray(flat).reshape(len(column), int(lengths[0]))


def _check_missing(missing, name):
    import numpy as np

    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        count = int(missing.sum())
        raise ValueError(
            f"column '{name}', row {row} has no value (missing in {count} rows){_MISSING}"
        )


def _check_name(name, names):
    if name in names:
        return
    import difflib

    near = difflib.get_close_matches(str(name), [str(known) for known in names], 1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise ValueError(
        f"the table has no column '{name}'{hint}: it has {', '.join(map(str, names))}\n  "
        "help: name the columns of an input: columns={'input': 'column'}"
    )


def from_torch(loader, feed_list, capacity=2):
    """Returns a loader of the batches of a ``torch.utils.data.DataLoader``, or of any iterable of
    batches: tuples of tensors in the order of ``feed_list``, or dicts by name.

    It is iterable, and for `Executor.train_from_dataset`. Labels of shape ``[batch]`` fill inputs
    of shape ``[None, 1]``.
    """
    feeds = _rows.feeds("feed_list", feed_list)
    if not hasattr(loader, "__iter__"):
        raise TypeError(f"loader: expected a DataLoader of torch, got {_rows.short(loader)}")
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise ValueError(f"capacity: expected 1 or more, got {capacity!r}")

    def batches():
        for batch in loader:
            if isinstance(batch, dict):
                yield {feed.name: _array(batch[feed.name], feed) for feed in feeds if
                       feed.name in batch}
                continue
            parts = list(batch) if isinstance(batch, (list, tuple)) else [batch]
            if len(parts) == len(feeds):
                parts = [_array(part, feed) for part, feed in zip(parts, feeds)]
            yield parts

    return GeneratorLoader(feeds, capacity, True, False).set_batch_generator(batches)


def _array(value, feed):
    """Returns a tensor of torch as an array."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    value = np.asarray(value)
    if value.ndim == len(feed.shape) - 1 and feed.shape[-1] == 1:
        value = value[..., np.newaxis]
    return value
