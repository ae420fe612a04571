"""Plain objects that other calls take."""

from fleet import _fleet


class ParamAttr:
    """Name, initializer, learning-rate factor, regularizer and switches of a parameter.

    `split` is the axis along which workers may divide it (`mp_degree`).
    """

    _param_attr = True

    def __init__(
        self,
        name=None,
        initializer=None,
        learning_rate=1.0,
        regularizer=None,
        trainable=True,
        do_model_average=True,
        need_clip=True,
        split=None,
    ):
        self.name = name
        self.initializer = initializer
        self.learning_rate = learning_rate
        self.regularizer = regularizer
        self.trainable = trainable
        self.need_clip = need_clip
        self.split = split

    def __repr__(self):
        return f"ParamAttr(name={self.name!r}, initializer={self.initializer!r})"


class _Message:
    """Fields of a message of the strategy. Only assigned ones are passed on."""

    def __init__(self):
        object.__setattr__(self, "_assigned", {})

    def __setattr__(self, name, value):
        try:
            _fleet.StrategyCell().set(self._path, {name: value})
        except ValueError as error:
            try:
                _fleet.StrategyCell().get(f"{self._path}.{name}")
            except ValueError:
                raise AttributeError(str(error)) from None
            raise
        self._assigned[name] = value

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._assigned:
            return self._assigned[name]
        try:
            return _fleet.StrategyCell().get(f"{self._path}.{name}")
        except ValueError as error:
            raise AttributeError(str(error)) from None

    def __repr__(self):
        return f"{type(self).__name__}({self._assigned})"


class BuildStrategy(_Message):
    """Rewrites that the executor makes. An assignment to a strategy takes the assigned fields."""

    _path = "build_strategy"

    #: Whether ranks exchange gradients in buckets: a field of the strategy itself.
    fuse_all_reduce_ops = True

    def __setattr__(self, name, value):
        if name != "fuse_all_reduce_ops":
            return super().__setattr__(name, value)
        if not isinstance(value, bool):
            raise TypeError(f"{name}: expected True or False, got {value!r}")
        object.__setattr__(self, name, value)


class ExecutionStrategy(_Message):
    """Settings of the executor. An assignment to a strategy takes the assigned fields."""

    _path = "execution_strategy"


class CountFilterEntry:
    """A row of a sparse table exists from this many occurrences of its id on."""

    def __init__(self, count_filter):
        self._entry = ("count", count_filter)


class ProbabilityEntry:
    """A row of a sparse table is created with this probability for each occurrence of its id."""

    def __init__(self, probability):
        self._entry = ("probability", probability)


class ShowClickEntry:
    """A row of a sparse table counts shows and clicks from these inputs."""

    def __init__(self, show_name, click_name):
        self._entry = ("show_click", show_name, click_name)
