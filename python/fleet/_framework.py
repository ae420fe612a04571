"""Programs, variables, and the guards around the calls that write programs.

Default programs, name scopes and device labels are globals, as in the documents. They live here:
every call passes them to Rust, where programs are values.
"""

import contextlib
import sys
import warnings

from fleet import _fleet


class Program:
    """A network: ops over variables. ``print(program)`` shows it as text."""

    __slots__ = ("_cell", "__weakref__")

    def __init__(self):
        self._cell = _fleet.ProgramCell()

    @classmethod
    def _of(cls, cell):
        program = cls.__new__(cls)
        program._cell = cell
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


class Variable:
    """A variable of a program."""

    __slots__ = ("program", "_id")

    def __init__(self, program, id):
        self.program = program
        self._id = id

    @property
    def _cell(self):
        return self.program._cell

    def _fact(self, index):
        return self._cell.facts(self._id)[index]

    @property
    def name(self):
        """The name, which is unique in the program."""
        return self._fact(0)

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
        if not isinstance(other, Variable):
            return NotImplemented
        return self._cell is other._cell and self._id == other._id

    def __hash__(self):
        return hash((id(self._cell), self._id))

    def __bool__(self):
        raise TypeError(
            f"{self!r} has no value while the program is written\n  "
            "help: fetch it: exe.run(fetch_list=[..])"
        )

    def astype(self, dtype):
        """Returns the elements as another type."""
        return self._op("cast", x=self, dtype=dtype)

    def _op(self, name, **args):
        return call(name, args, self.program)

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
        return self._op("pow", x=self, y=other)

    def __mod__(self, other):
        return self._op("remainder", x=self, y=other)

    def __floordiv__(self, other):
        return self._op("floor_divide", x=self, y=other)

    def __matmul__(self, other):
        return self._op(
            "matmul", x=self, y=other, transpose_x=False, transpose_y=False, name=None
        )

    def __lt__(self, other):
        return self._op("less_than", x=self, y=other)

    def __le__(self, other):
        return self._op("less_equal", x=self, y=other)

    def __gt__(self, other):
        return self._op("greater_than", x=self, y=other)

    def __ge__(self, other):
        return self._op("greater_equal", x=self, y=other)

    def __iter__(self):
        raise TypeError(f"{self!r} cannot be iterated\n  help: use unstack or split")

    def __getitem__(self, items):
        """Integers and slices, one for each of the first dimensions."""
        items = items if isinstance(items, tuple) else (items,)
        if len(items) > self.ndim:
            raise IndexError(f"{len(items)} indices for {self!r}")
        axes, starts, ends, strides, dropped = [], [], [], [], []
        for axis, item in enumerate(items):
            if isinstance(item, slice):
                if item == slice(None):
                    continue
                start, end = item.start, item.stop
                stride = 1 if item.step is None else item.step
                start = 0 if start is None else start
                end = _END if end is None else end
                if stride <= 0:
                    raise IndexError(f"the step of a slice must be above 0, got {stride}")
            elif isinstance(item, int):
                start, stride = item, 1
                end = _END if item == -1 else item + 1
                dropped.append(axis)
            else:
                raise TypeError(f"an index must be an integer or a slice, got {item!r}")
            axes.append(axis)
            starts.append(start)
            ends.append(end)
            strides.append(stride)
        if not axes:
            return self
        if all(stride == 1 for stride in strides):
            part = self._op("slice", x=self, axes=axes, starts=starts, ends=ends)
        else:
            part = self._op(
                "strided_slice", x=self, axes=axes, starts=starts, ends=ends, strides=strides
            )
        # A tensor of one number has one dimension.
        dropped = dropped[1:] if len(dropped) == self.ndim else dropped
        return part._op("squeeze", x=part, axis=dropped) if dropped else part


#: The end of a slice without one.
_END = 2**31 - 1


class _Place:
    """What a call passes to Rust: the user's line and the guards around the call."""

    __slots__ = ("source", "names", "scope", "device", "fp16_guard")


class _State:
    main = Program()
    startup = Program()
    names = _fleet.NamesCell()
    scopes = []
    device = None
    fp16_guard = False


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


def default_main_program():
    """Returns the program to which layers add ops."""
    return _state.main


def default_startup_program():
    """Returns the program to which layers add initializers."""
    return _state.startup


@contextlib.contextmanager
def program_guard(main_program, startup_program=None):
    """Makes these the default programs in the block."""
    if not isinstance(main_program, Program):
        raise TypeError(f"main_program: expected a Program, got {main_program!r}")
    if startup_program is not None and not isinstance(startup_program, Program):
        raise TypeError(f"startup_program: expected a Program, got {startup_program!r}")
    before = _state.main, _state.startup
    _state.main = main_program
    _state.startup = startup_program or _state.startup
    try:
        yield
    finally:
        _state.main, _state.startup = before


@contextlib.contextmanager
def name_scope(prefix):
    """Prefixes the automatic names of layers in the block."""
    if not isinstance(prefix, str) or not prefix:
        raise TypeError(f"prefix: expected a name, got {prefix!r}")
    _state.scopes.append(prefix)
    try:
        yield
    finally:
        _state.scopes.pop()


@contextlib.contextmanager
def device_guard(device=None):
    """Labels the ops of the block with a device: "cpu", "gpu", "gpu:0", "gpu:all"."""
    before, _state.device = _state.device, device
    try:
        yield
    finally:
        _state.device = before


@contextlib.contextmanager
def fp16_guard():
    """Marks the ops of the block for 16-bit computation under ``use_fp16_guard``."""
    before, _state.fp16_guard = _state.fp16_guard, True
    try:
        yield
    finally:
        _state.fp16_guard = before


def seed(value):
    """Sets the seed of the default programs."""
    _state.main.random_seed = value
    _state.startup.random_seed = value


def _scope_or_global(scope):
    from fleet._executor import global_scope

    return global_scope() if scope is None else scope
