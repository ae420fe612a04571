"""Job files: training on your own data without a network of your own."""

import os
import sys

from fleet._fleet import job_check, job_folder, job_predict, job_train


class Job:
    """A job file, and the model that it trains.

    * ``output``: the model folder, instead of ``output.folder`` of the file.
    * ``threads``: number of threads, or 0 for the number of cores.

    A model folder that exists scores rows without a training.
    """

    def __init__(self, file, output=None, threads=0):
        self.file = os.fspath(file)
        self.threads = threads
        self.folder = os.fspath(job_folder(self.file) if output is None else output)

    def __repr__(self):
        return f"Job({self.file!r}, output={self.folder!r})"

    def check(self, rows=200_000):
        """Checks the file and up to ``rows`` rows of its data. Returns warnings as texts. Errors,
        each with its line and column, are one ValueError."""
        return job_check(self.file, rows)

    def train(self, fresh=False, quiet=False):
        """Trains the model and returns the report. A training that was interrupted resumes, unless
        it is to begin again (``fresh``). ``quiet`` prints nothing. Other threads of Python run
        meanwhile."""
        write = (lambda line: None) if quiet else print
        job_train(self.file, self.folder, self.threads, fresh, quiet, write)
        return self.report

    def predict(self, data):
        """Returns scores as a float32 array: one for each row, or ``[rows, classes]``
        or ``[rows, labels]``.

        ``data`` is a file, a list of files, or a table: of pandas, pyarrow or polars, or a dict of
        columns. Its columns are those of the job's files; a label is not needed. A table is scored
        through a temporary file: Parquet with the package pyarrow, and CSV without.
        """
        files = _files(data)
        if files is not None:
            return job_predict(self.folder, files, False, self.threads)
        # Imported here, so that the package is imported sooner.
        import tempfile

        with tempfile.TemporaryDirectory(prefix="fleet-job-") as folder:
            path = _write(data, folder)
            return job_predict(self.folder, [path], True, self.threads)

    @property
    def report(self):
        """The report of the finished model, which is also in ``report.html`` of the folder."""
        path = os.path.join(self.folder, "report.json")
        if not os.path.exists(path):
            raise ValueError(
                f"no report: expected a model folder, got {self.folder}\n  "
                "help: train the job first"
            )
        import json

        with open(path, encoding="utf-8") as file:
            return json.load(file)


def _files(data):
    if isinstance(data, (str, os.PathLike)):
        return [os.fspath(data)]
    if isinstance(data, (list, tuple)) and all(isinstance(it, (str, os.PathLike)) for it in data):
        return [os.fspath(it) for it in data]
    return None


def _write(table, folder):
    """Writes a table as a file, and returns its path."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        pyarrow = None
    if pyarrow is None:
        path = os.path.join(folder, "rows.csv")
        _write_csv(_columns(table), path)
        return path
    path = os.path.join(folder, "rows.parquet")
    parquet.write_table(_arrow(pyarrow, table), path)
    return path


def _is_pandas(table):
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(table, pandas.DataFrame)


def _arrow(pyarrow, table):
    if isinstance(table, pyarrow.Table):
        return table
    if isinstance(table, pyarrow.RecordBatch):
        return pyarrow.Table.from_batches([table])
    if isinstance(table, dict):
        return pyarrow.table(table)
    if hasattr(table, "to_arrow"):
        return table.to_arrow()
    if _is_pandas(table):
        return pyarrow.Table.from_pandas(table, preserve_index=False)
    raise _not_rows(table)


def _columns(table):
    """Returns lists of values by the name of their column."""
    if _is_pandas(table):
        table = table.to_dict("list")
    elif hasattr(table, "to_dict") and not isinstance(table, dict):
        table = table.to_dict(as_series=False)
    if not isinstance(table, dict):
        raise _not_rows(table)
    columns = {name: list(values) for name, values in table.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns have different lengths: {lengths}")
    return columns


def _write_csv(columns, path):
    import csv

    def text(name, value):
        if value is None or value != value:
            return ""
        if isinstance(value, (list, tuple)):
            raise ValueError(
                f"column '{name}' has lists\n  help: install pyarrow, or join the values with the "
                "column's separator"
            )
        return value.item() if hasattr(value, "item") else value

    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*columns.values()):
            writer.writerow([text(name, value) for name, value in zip(columns, row)])


def _not_rows(table):
    got = type(table).__name__
    return ValueError(f"rows to score: expected files, a table or a dict of columns, got {got}")
