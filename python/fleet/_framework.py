"""Programs, variables, and the guards around the calls that write programs.

Default programs, name scopes and device labels are globals, as in the documents. They live here:
every call passes them to Rust, where programs are values. Guards affect their own thread only.
"""

import contextlib
import operator
import re
import sys
import threading
import warnings
import weakref

from fleet._absent import spelled as _spelled
from fleet import _fleet


class Program:
    """A network: ops over variables. ``print(program)`` shows it as text."""

    __slots__ = ("_cell", "_variables", "__weakref__")

    def __init__(self):
        self._hold(_fleet.ProgramCell())

    def _hold(self, cell):
        self._cell = cell
        #: The objects for variables, by id: one for each.
        self._variables = weakref.WeakValueDictionary()

    @classmethod
    def _of(cls, cell):
        program = cls.__new__(cls)
        program._hold(cell)
        return program

    def _begin(self, executor, scope):
        """What a kind of program does before a run. Returns whether that was the run."""
        return False

    @staticmethod
    def parse(text):
        """Reads the text form of a program."""
        return Program._of(_fleet.ProgramCell.parse(text))

    def to_string(self, throw_on_error=False, with_details=False):
        """Returns the text form; with details, also the source line of each op."""
        return self._cell.text(with_details)

    def __repr__(self):
        return self._cell.text(True)

    def clone(self, for_test=False):
        """Returns a copy; for a test, only the forward part, with dropout off and batch norm on
        moving averages."""
        return Program._of(self._cell.copy(for_test))

    def __deepcopy__(self, memo):
        return self.clone()

    __copy__ = clone

    @property
    def random_seed(self):
        """Seed of the random numbers of this program."""
        return self._cell.seed

    @random_seed.setter
    def random_seed(self, seed):
        from fleet import _checks

        self._cell.set_seed(_checks.seed("seed", seed))

    def global_block(self):
        """Returns the program itself, which lists the variables of its block."""
        return self

    def var(self, name):
        """Returns the variable of this name."""
        return Variable(self, self._cell.named(name))

    def has_var(self, name):
        """Returns whether the program has a variable of this name."""
        return self._cell.find(name) is not None

    def list_vars(self):
        """Returns all variables."""
        return [Variable(self, id) for id in self._cell.vars()]

    def all_parameters(self):
        """Returns the parameters."""
        return [Variable(self, id) for id in self._cell.parameters()]

    @property
    def ops(self):
        """The ops, in order."""
        return [Operator(*op) for op in self._cell.ops()]

    @property
    def op_names(self):
        """Names of the ops, in order."""
        return self._cell.op_names()

    def state_dict(self, mode="all", scope=None):
        """Returns copies of the variables that persist, as arrays by name.

        ``mode`` is "all", "param" for the parameters, or "opt" for all others.
        """
        scope = _scope_or_global(scope)
        return {name: scope[name] for name in self._persistables(mode) if name in scope}

    def set_state_dict(self, state_dict, scope=None):
        """Assigns variables from arrays by name. Nothing changes if a name or a shape is wrong."""
        from fleet._arrays import as_array

        scope = _scope_or_global(scope)
        values = {}
        for name, value in state_dict.items():
            self._cell.named(name)
            meta = scope._cell.meta(name)
            if meta is None:
                raise ValueError(
                    f"the scope has no variable '{name}'\n  help: run the startup program first"
                )
            shape, dtype = meta
            value = as_array(f"'{name}'", value, dtype)
            if list(value.shape) != shape:
                raise ValueError(
                    f"'{name}' has the wrong shape: expected {shape}, got {list(value.shape)}"
                )
            values[name] = value
        for name, value in values.items():
            scope[name] = value

    def _persistables(self, mode):
        if mode not in ("all", "param", "opt"):
            raise ValueError(f"mode: expected 'all', 'param' or 'opt', got {mode!r}")
        kept = [var.name for var in self.list_vars() if var.persistable]
        parameters = {var.name for var in self.all_parameters()}
        if mode == "all":
            return kept
        return [name for name in kept if (name in parameters) == (mode == "param")]


class Operator:
    """An op of a program, as it was when it was listed."""

    __slots__ = ("type", "input_arg_names", "output_arg_names")

    def __init__(self, type, input_arg_names, output_arg_names):
        self.type = type
        self.input_arg_names = input_arg_names
        self.output_arg_names = output_arg_names

    def __repr__(self):
        inputs, outputs = ", ".join(self.input_arg_names), ", ".join(self.output_arg_names)
        return f"Operator({outputs} = {self.type}({inputs}))"


class Variable:
    """A variable of a program. ``==`` is an op, as ``<`` is: compare the objects with ``is``."""

    __slots__ = ("program", "_id", "__weakref__")

    #: Operators of NumPy leave the work to those here.
    __array_ufunc__ = None

    def __new__(cls, program, id):
        known = program._variables.get(id) if cls is Variable else None
        if known is None:
            known = super().__new__(cls)
            known.program, known._id = program, id
            if cls is Variable:
                program._variables[id] = known
        return known

    @property
    def _cell(self):
        return self.program._cell

    def _fact(self, index):
        return self._cell.facts(self._id)[index]

    @property
    def name(self):
        """The name, which is unique in the program."""
        return self._cell.name_of(self._id)

    @property
    def shape(self):
        """The shape; unknown dimensions are -1."""
        return tuple(self._fact(1))

    @property
    def dtype(self):
        """The type of the elements, such as 'float32'."""
        return self._fact(2)

    @property
    def persistable(self):
        """Whether the scope keeps the variable from one run to the next."""
        return self._fact(3)

    @property
    def stop_gradient(self):
        """Whether gradients stop at the variable."""
        return self._fact(4)

    @stop_gradient.setter
    def stop_gradient(self, value):
        self._cell.set_stop_gradient(self._id, value)

    @property
    def is_data(self):
        """Whether the variable is fed."""
        return self._fact(5)

    @property
    def trainable(self):
        """Whether the variable is a parameter that optimizers train."""
        return self._fact(6)

    @property
    def lod_level(self):
        """The number of levels of ragged rows; 0 for a plain tensor."""
        return self._fact(7)

    @property
    def ndim(self):
        """The number of dimensions."""
        return len(self.shape)

    def __repr__(self):
        return f"Variable({self.name}: {self.dtype}{list(self.shape)})"

    def __eq__(self, other):
        if not _compares(other):
            return NotImplemented
        return self._op("equal", x=self, y=other, name=None)

    def __ne__(self, other):
        if not _compares(other):
            return NotImplemented
        return self._op("not_equal", x=self, y=other, name=None)

    __hash__ = object.__hash__

    def _no_value(self):
        return (
            f"{self!r} has no value while the program is written\n  "
            "help: fetch it: exe.run(fetch_list=[..])"
        )

    def __bool__(self):
        raise TypeError(f"{self._no_value()}, or compare two Variable objects with `is`")

    def __array__(self, dtype=None, copy=None):
        raise TypeError(self._no_value())

    def __float__(self):
        raise TypeError(self._no_value())

    __int__ = __index__ = __float__

    def astype(self, dtype):
        """Returns the elements as another type."""
        return self._op("cast", x=self, dtype=dtype)

    def _op(self, layer, /, **args):
        return call(layer, args, self.program)

    def __add__(self, other):
        return self._op("operator_add", x=self, y=other)

    def __radd__(self, other):
        return self._op("operator_add", x=other, y=self)

    def __sub__(self, other):
        return self._op("operator_sub", x=self, y=other)

    def __rsub__(self, other):
        return self._op("operator_sub", x=other, y=self)

    def __mul__(self, other):
        return self._op("operator_mul", x=self, y=other)

    def __rmul__(self, other):
        return self._op("operator_mul", x=other, y=self)

    def __truediv__(self, other):
        return self._op("operator_div", x=self, y=other)

    def __rtruediv__(self, other):
        return self._op("operator_div", x=other, y=self)

    def __neg__(self):
        return self._op("operator_mul", x=self, y=-1.0)

    def __pow__(self, other):
        return self._op("pow", x=self, y=other, name=None)

    def __rpow__(self, other):
        return self._op("pow", x=other, y=self, name=None)

    def __mod__(self, other):
        return self._op("remainder", x=self, y=other, name=None)

    def __rmod__(self, other):
        return self._op("remainder", x=other, y=self, name=None)

    def __floordiv__(self, other):
        return self._op("floor_divide", x=self, y=other, name=None)

    def __rfloordiv__(self, other):
        return self._op("floor_divide", x=other, y=self, name=None)

    def __matmul__(self, other):
        return self._op(
            "matmul", x=self, y=other, transpose_x=False, transpose_y=False, alpha=1.0, name=None
        )

    def __lt__(self, other):
        return self._op("less_than", x=self, y=other, name=None)

    def __le__(self, other):
        return self._op("less_equal", x=self, y=other, name=None)

    def __gt__(self, other):
        return self._op("greater_than", x=self, y=other, name=None)

    def __ge__(self, other):
        return self._op("greater_equal", x=self, y=other, name=None)

    def __iter__(self):
        raise TypeError(f"{self!r} cannot be iterated\n  help: use unstack or split")

    def __getitem__(self, items):
        """Integers and slices, one for each of the first dimensions, ``...`` and ``None``."""
        items = list(items) if isinstance(items, tuple) else [items]
        axes, starts, ends, strides, dropped, added = [], [], [], [], [], []
        axis = made = 0
        for item in _spread(self, items):
            if item is None:
                added.append(made)
                made += 1
                continue
            if isinstance(item, slice):
                bounds = _bounds(item)
                made += 1
            else:
                at = _position(self, axis, item)
                bounds = (at, _END if at == -1 else at + 1, 1)
                dropped.append(axis)
            if bounds != (0, _END, 1):
                axes.append(axis)
                starts.append(bounds[0])
                ends.append(bounds[1])
                strides.append(bounds[2])
            axis += 1
        # A tensor of one number has one dimension: it is the new one, if there is one.
        added = added[1:] if len(dropped) == self.ndim else added
        return self._op(
            "part", x=self, axes=axes, starts=starts, ends=ends, strides=strides, dropped=dropped,
            added=added,
        )


def _compares(other):
    """Whether ``==`` with this object is an op. Arrays are arguments of the op, which rejects
    them."""
    return isinstance(other, (Variable, int, float)) or hasattr(other, "__array__")


def _spread(var, items):
    """Replaces the ellipsis, if there is one, by slices of whole dimensions."""
    ellipses = [n for n, item in enumerate(items) if item is Ellipsis]
    count = sum(item is not None for item in items) - len(ellipses)
    if len(ellipses) > 1:
        raise IndexError("an index has one ellipsis (...) at most")
    if count > var.ndim:
        raise IndexError(f"{count} indices for {var!r}")
    for n in ellipses:
        items[n : n + 1] = [slice(None)] * (var.ndim - count)
    return items


def _bounds(item):
    """Returns start, end and step of a slice."""
    start = 0 if item.start is None else _index(item.start)
    end = _END if item.stop is None else _index(item.stop)
    step = 1 if item.step is None else _index(item.step)
    if step <= 0:
        raise IndexError(f"the step of a slice must be above 0, got {step}")
    return start, end, step


def _position(var, axis, item):
    """Checks an index into a dimension."""
    at, size = _index(item), var.shape[axis]
    if size >= 0 and not -size <= at < size:
        raise IndexError(f"index {at} is out of range for dimension {axis} of {var!r}")
    return at


def _index(item):
    # A boolean is an integer, but NumPy takes it as a mask. `__index__` of an array is one too.
    if not isinstance(item, bool) and not hasattr(item, "_id"):
        try:
            return operator.index(item)
        except TypeError:
            pass
    raise TypeError(
        _spelled(
            f"an index must be an integer, a slice, ... or None, got {item!r}\n  "
            "help: use fleet.gather for rows by their numbers"
        )
    )


#: The end of a slice without one.
_END = 2**31 - 1


class _Place:
    """What a call passes to Rust: the user's line and the guards around the call."""

    __slots__ = ("source", "names", "scope", "device", "fp16_guard")


class _State(threading.local):
    """What the guards of a thread have set. The attributes here are those of the process, with
    which every thread starts; an assignment is one of the thread."""

    main = Program()
    startup = Program()
    names = _fleet.NamesCell()
    scopes = ()
    device = None
    fp16_guard = False
    #: The scope of `scope_guard`; None is that of the process.
    scope = None


_state = _State()


def user_line():
    """Returns ``file:line`` of the innermost caller outside of this package."""
    file, line = _caller()
    return f"{file}:{line}" if line else file


def warn_user(text, category=UserWarning):
    """Warns at the line of the innermost caller outside of this package."""
    warnings.warn_explicit(text, category, *_caller())


def _caller():
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name != "fleet" and not name.startswith("fleet."):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "fleet", 0


def place():
    made = _Place()
    made.source = user_line()
    made.names = _state.names
    made.scope = "/".join(_state.scopes) if _state.scopes else None
    made.device = _state.device
    made.fp16_guard = _state.fp16_guard
    return made


def call(name, args, program=None):
    """Calls a layer of the Rust library, in the default main program or another one."""
    program = program or _state.main
    made = _fleet.call(program._cell, _state.startup._cell, place(), name, args)
    return _variables(program, made)


def _variables(program, made):
    if isinstance(made, int):
        return Variable(program, made)
    return type(made)(_variables(program, part) for part in made)


@contextlib.contextmanager
def all_or_none(program, startup):
    """Makes several calls one: if one fails, the programs are as they were."""
    saved = [(each._cell, each._cell.copy(False)) for each in (program, startup)]
    try:
        yield
    except BaseException:
        for cell, before in saved:
            cell.restore(before)
        raise


@contextlib.contextmanager
def undone_on_error(program, startup):
    """Like `all_or_none`, for calls of layers only: they do not change what is there already. Ids
    of variables of a failed call are not given to others."""
    marks = [(each._cell, each._cell.mark()) for each in (program, startup)]
    try:
        yield
    except BaseException:
        for cell, mark in marks:
            cell.undo(mark)
        raise


def default_main_program():
    """Returns the program to which layers add ops."""
    return _state.main


def default_startup_program():
    """Returns the program to which layers add initializers."""
    return _state.startup


@contextlib.contextmanager
def _set(**values):
    """Sets attributes of the thread's state in the block."""
    before = {name: getattr(_state, name) for name in values}
    vars(_state).update(values)
    try:
        yield
    finally:
        vars(_state).update(before)


@contextlib.contextmanager
def program_guard(main_program, startup_program=None):
    """Makes these the default programs in the block."""
    if not isinstance(main_program, Program):
        raise TypeError(f"main_program: expected a Program, got {main_program!r}")
    if startup_program is not None and not isinstance(startup_program, Program):
        raise TypeError(f"startup_program: expected a Program, got {startup_program!r}")
    with _set(main=main_program, startup=startup_program or _state.startup):
        yield


@contextlib.contextmanager
def name_scope(prefix):
    """Prefixes the automatic names of layers in the block."""
    if not isinstance(prefix, str) or not prefix:
        raise TypeError(f"prefix: expected a name, got {prefix!r}")
    with _set(scopes=(*_state.scopes, prefix)):
        yield


@contextlib.contextmanager
def device_guard(device=None):
    """Labels the ops of the block with a device: "cpu", "gpu", "gpu:0", "gpu:all"."""
    if device is not None and not isinstance(device, str):
        raise TypeError(f"device: expected a device such as 'cpu' or None, got {device!r}")
    if device is not None and not re.fullmatch("cpu|gpu(:(all|[0-9]{1,4}))?", device):
        raise ValueError(f"device: expected 'cpu', 'gpu', 'gpu:N' or 'gpu:all', got {device!r}")
    with _set(device=device):
        yield


@contextlib.contextmanager
def fp16_guard():
    """Marks the ops of the block for 16-bit computation under ``use_fp16_guard``."""
    with _set(fp16_guard=True):
        yield


def seed(value):
    """Sets the seed of the default programs."""
    _state.main.random_seed = value
    _state.startup.random_seed = value


def _scope_or_global(scope):
    from fleet._executor import global_scope

    return global_scope() if scope is None else scope
