"""Executors, scopes and places."""

import contextlib
import warnings

from fleet._absent import spelled as _spelled
from fleet import _checks, _fleet
from fleet._framework import Program, Variable, _set, _state, default_main_program


class CPUPlace:
    """The cores of this machine."""

    def __repr__(self):
        return "CPUPlace()"


class CUDAPlace:
    """A GPU. Fleet computes on the CPU, and warns once."""

    _warned = False

    def __init__(self, id=0):
        self.id = id
        if not CUDAPlace._warned:
            CUDAPlace._warned = True
            warnings.warn("CUDAPlace: programs run on the CPU", RuntimeWarning, stacklevel=2)

    def __repr__(self):
        return f"CUDAPlace({self.id})"


def set_device(device):
    """Returns the place of "cpu", "gpu" or "gpu:0". Programs run on the CPU in any case, with one
    warning for a GPU."""
    kind, _, number = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind not in ("cpu", "gpu") or (number and not number.isdecimal()):
        raise ValueError(f"device: expected 'cpu', 'gpu' or 'gpu:N', got {device!r}")
    return CPUPlace() if kind == "cpu" else CUDAPlace(int(number or 0))


def get_device():
    """Returns the device that programs run on: "cpu"."""
    return "cpu"


def is_compiled_with_cuda():
    """Returns whether programs can run on a GPU: not yet."""
    return False


class Scope:
    """The variables that programs keep between runs, as arrays by name.

    ``scope[name]`` is a copy. Assigning needs a value of the same shape and type.
    """

    __slots__ = ("_cell",)

    def __init__(self):
        self._cell = _fleet.ScopeCell()

    @classmethod
    def _of(cls, cell):
        scope = cls.__new__(cls)
        scope._cell = cell
        return scope

    def __getitem__(self, name):
        return self._cell.value(name)

    def __setitem__(self, name, value):
        self._cell.assign(name, value)

    def __contains__(self, name):
        return self._cell.contains(name)

    def __iter__(self):
        return iter(self._cell.names())

    def __len__(self):
        return len(self._cell.names())

    def __bool__(self):
        return True

    def __repr__(self):
        return f"Scope({len(self)} variables)"

    def find_var(self, name):
        """Returns the variable of this name, or None."""
        return ScopeVariable(self, name) if name in self else None

    def erase(self, names):
        """Removes variables."""
        self._cell.erase(list(names))


class ScopeVariable:
    """A variable of a scope: ``scope.find_var(name).get_tensor()`` is its tensor."""

    __slots__ = ("_scope", "name")

    def __init__(self, scope, name):
        self._scope = scope
        self.name = name

    def get_tensor(self):
        """Returns the tensor."""
        return self

    def set(self, value, place=None):
        """Assigns the value, of the same shape and type."""
        self._scope[self.name] = value

    def shape(self):
        """Returns the shape."""
        return self._meta()[0]

    _get_dims = shape

    def _meta(self):
        meta = self._scope._cell.meta(self.name)
        if meta is None:
            raise ValueError(f"the scope has no variable '{self.name}' any more")
        return meta

    def __array__(self, dtype=None, copy=None):
        array = self._scope[self.name]
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options):
        return self._scope[self.name].__dlpack__(**options)

    def __dlpack_device__(self):
        return self._scope[self.name].__dlpack_device__()

    def __repr__(self):
        shape, dtype = self._meta()
        return f"ScopeVariable({self.name}: {dtype}{shape})"


#: Loaders whose batches `Executor.run` takes, in the order in which they were started.
started_loaders = []

#: Converts each fetched array; None for no conversion (`fleet.compat`).
convert_fetched = None

_process_scope = Scope()


def global_scope():
    """Returns the scope that executors use."""
    return _process_scope if _state.scope is None else _state.scope


@contextlib.contextmanager
def scope_guard(scope):
    """Makes this the global scope in the block."""
    if not isinstance(scope, Scope):
        raise TypeError(f"scope: expected a Scope, got {scope!r}")
    with _set(scope=scope):
        yield


#: Limit on threads: more than any machine has.
THREADS_MAX = 4096


class Executor:
    """Runs programs.

    ``threads`` is the number of threads; 0 means one for each core.
    """

    def __init__(self, place=None, threads=0):
        threads = _checks.integer("threads", threads, 0, THREADS_MAX)
        if not isinstance(place, (CPUPlace, CUDAPlace, type(None))):
            raise TypeError(
                _spelled(
                    f"place: expected CPUPlace() or CUDAPlace(0), got {place!r}\n  "
                    "help: fleet.set_device returns the place of a name"
                )
            )
        self.place = place or CPUPlace()
        self._threads = threads
        self._cell = _fleet.ExecutorCell(threads)

    def __repr__(self):
        return f"Executor({self.place!r}, threads={self._threads})"

    def run(
        self,
        program=None,
        feed=None,
        fetch_list=None,
        feed_var_name="feed",
        fetch_var_name="fetch",
        scope=None,
        return_numpy=True,
        use_program_cache=False,
        use_prune=False,
    ):
        """Runs a program once: a training step, an evaluation, or the startup program.

        ``feed`` has arrays by the name of an input. Returns the fetched variables as arrays, in the
        order of ``fetch_list``, which has variables or names.
        """
        if isinstance(program, (list, tuple)) and fetch_list is None:
            # `exe.run([])`: the default program, and what to fetch.
            program, fetch_list = None, program
        if program is None:
            program = default_main_program()
        elif not isinstance(program, Program):
            raise TypeError(f"program: expected a Program, got {program!r}")
        if use_prune:
            raise NotImplementedError(
                "use_prune is not supported\n  help: run program.clone(for_test=True)"
            )
        scope = global_scope() if scope is None else scope
        if not isinstance(scope, Scope):
            raise TypeError(f"scope: expected a Scope, got {scope!r}")
        if type(program) is not Program and program._begin(self, scope):
            return []
        if started_loaders:
            feed = _with_batches(program, feed)
        feeds, fetches = _feeds(feed), _names(fetch_list)
        fetched = self._cell.run(program._cell, feeds, fetches, scope._cell)
        return fetched if convert_fetched is None else list(map(convert_fetched, fetched))

    def train_from_dataset(
        self,
        program=None,
        dataset=None,
        scope=None,
        thread=0,
        debug=False,
        fetch_list=None,
        fetch_info=None,
        print_period=100,
        fetch_handler=None,
    ):
        """Trains on one pass of a dataset, of `fleet.io.from_table`, or of a loader.

        * ``thread``: threads that prepare batches; 0 takes the dataset's number. Each step uses all
          threads of the executor, so the result does not depend on ``thread``.
        * ``debug``: prints the speed at the end, and how long training waited for data.
        * ``fetch_list``: variables to print after every ``print_period`` batches, with the labels
          of ``fetch_info``, which are their names by default.
        * ``fetch_handler``: a `FetchHandler`, which gets values about every ``period_secs``.
        """
        self._from_dataset(
            program, dataset, scope, thread, debug, fetch_list, fetch_info, print_period,
            fetch_handler, False,
        )

    def infer_from_dataset(
        self,
        program=None,
        dataset=None,
        scope=None,
        thread=0,
        debug=False,
        fetch_list=None,
        fetch_info=None,
        print_period=100,
        fetch_handler=None,
    ):
        """Runs the forward part of a program on one pass of a dataset, like `train_from_dataset`.
        Nothing is trained."""
        self._from_dataset(
            program, dataset, scope, thread, debug, fetch_list, fetch_info, print_period,
            fetch_handler, True,
        )

    def _from_dataset(
        self, program, dataset, scope, thread, debug, fetch_list, fetch_info, print_period,
        fetch_handler, infers,
    ):
        program = default_main_program() if program is None else program
        if not isinstance(program, Program):
            raise TypeError(f"program: expected a Program, got {program!r}")
        scope = global_scope() if scope is None else scope
        if not isinstance(scope, Scope):
            raise TypeError(f"scope: expected a Scope, got {scope!r}")
        if dataset is None:
            raise ValueError("dataset: expected a dataset or a loader, got None")
        if not hasattr(dataset, "_source"):
            raise TypeError(f"dataset: expected a dataset or a loader, got {dataset!r}")
        thread = _checks.integer("thread", thread, 0, THREADS_MAX)
        print_period = _checks.integer("print_period", print_period, 0, 2**64 - 1)
        settings = {
            "infers": infers,
            "threads": thread,
            "debug": bool(debug),
            "fetch": _labels(fetch_list, fetch_info),
            "print_period": print_period,
            "print": _print,
            "watched": [],
            "period_secs": 0.0,
            "handler": None,
        }
        if fetch_handler is not None:
            settings.update(_handler(fetch_handler))
        count = self._cell.run_dataset(program._cell, dataset._source(), scope._cell, settings)
        if count == 0:
            warnings.warn("the dataset has no batches", RuntimeWarning, stacklevel=3)

    def close(self):
        """Ends the threads and frees the memory. The executor cannot run again."""
        self._cell.close()


class FetchHandler:
    """Gets values while `Executor.train_from_dataset` runs. Subclasses define `handler`.

    ``var_dict`` has the variables by label. ``period_secs`` is the time between two calls; there is
    one more after the last batch.
    """

    def __init__(self, var_dict=None, period_secs=60):
        if not isinstance(var_dict, dict) or not var_dict:
            raise TypeError(f"var_dict: expected a dict of variables by label, got {var_dict!r}")
        self.var_dict = var_dict
        self.period_secs = period_secs

    def handler(self, res_dict):
        """Gets arrays by label."""
        for label, value in res_dict.items():
            print(f"{label}: {value}", flush=True)


def _handler(handler):
    period = getattr(handler, "period_secs", None)
    var_dict = getattr(handler, "var_dict", None)
    if not isinstance(var_dict, dict) or not hasattr(handler, "handler"):
        raise TypeError(f"fetch_handler: expected a FetchHandler, got {handler!r}")
    if isinstance(period, bool) or not isinstance(period, (int, float)) or not period >= 0:
        raise ValueError(f"fetch_handler: period_secs: expected 0 or more, got {period!r}")
    watched = [(str(label), _name("var_dict", var)) for label, var in var_dict.items()]
    return {"watched": watched, "period_secs": float(period), "handler": handler.handler}


def _labels(fetch_list, fetch_info):
    names = _names(fetch_list)
    if fetch_info is None:
        return [(name, name) for name in names]
    labels = [fetch_info] if isinstance(fetch_info, str) else list(fetch_info)
    if len(labels) != len(names) or not all(isinstance(label, str) for label in labels):
        raise ValueError(
            f"fetch_info: expected {len(names)} labels, as fetch_list has, got {labels!r}"
        )
    return list(zip(labels, names))


def _print(line):
    print(line, flush=True)


def _with_batches(program, feed):
    """Adds the next batches of started loaders to a feed."""
    feed = dict(_feeds(feed))
    fits = [loader for loader in started_loaders if loader._fits(program, feed)]
    # Loaders of this program come first; others have inputs of the same names.
    fits.sort(key=lambda loader: not loader._belongs_to(program))
    for loader in fits:
        if loader._fits(program, feed):
            feed.update(loader._next_feed())
    return feed


def _feeds(feed):
    if not feed:
        return []
    if isinstance(feed, (list, tuple)) and len(feed) == 1:
        # The feed of one place.
        feed = feed[0]
    try:
        items = feed.items()
    except AttributeError:
        raise TypeError(f"feed: expected a dict of arrays by name, got {type(feed).__name__}")
    return [(_name("feed", name), value) for name, value in items]


def _names(fetch_list):
    if fetch_list is None:
        return []
    if isinstance(fetch_list, (str, Variable)):
        fetch_list = [fetch_list]
    return [_name("fetch_list", item) for item in fetch_list]


def _name(what, item):
    if isinstance(item, str):
        return item
    if isinstance(item, Variable):
        return item.name
    raise TypeError(f"{what}: expected variables or names, got {item!r}")
