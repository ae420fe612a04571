"""``DistributedStrategy`` by attribute. Fields, defaults and checks are in Rust."""

import warnings

from fleet import _fleet


class DistributedStrategy:
    """Settings of distributed training. ``print(strategy)`` shows them with their defaults.

    ::

        strategy = DistributedStrategy()
        strategy.amp = True
        strategy.amp_configs = {"init_loss_scaling": 1024.0}
    """

    __slots__ = ("_cell",)

    def __init__(self):
        object.__setattr__(self, "_cell", _fleet.StrategyCell())

    def __getattr__(self, name):
        if name == "_cell":
            raise AttributeError(name)
        try:
            return self._cell.get(name)
        except ValueError as error:
            raise AttributeError(str(error)) from None

    def __setattr__(self, name, value):
        try:
            notices = self._cell.set(name, value)
            if "fuse_all_reduce_ops" in getattr(value, "__dict__", ()):
                # A field of `BuildStrategy` that is one of the strategy here.
                self._cell.set("fuse_all_reduce_ops", value.fuse_all_reduce_ops)
        except ValueError as error:
            if _fleet.StrategyCell.knows(name):
                raise
            raise AttributeError(str(error)) from None
        for notice in notices:
            warnings.warn(notice, UserWarning, stacklevel=2)

    def __dir__(self):
        return sorted(set(super().__dir__()) | set(_fleet.StrategyCell.names()))

    def __repr__(self):
        return self._cell.overview()

    def __deepcopy__(self, memo):
        copy = DistributedStrategy()
        object.__setattr__(copy, "_cell", self._cell.copy())
        return copy

    def __copy__(self):
        return self.__deepcopy__({})

    def save_to_prototxt(self, output):
        """Writes the assigned fields to a file."""
        self._cell.save(output)

    def load_from_prototxt(self, pb_file):
        """Reads a file; its fields replace those of the strategy."""
        for notice in self._cell.load(pb_file):
            warnings.warn(notice, UserWarning, stacklevel=2)
