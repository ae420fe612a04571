"""Shapes at run time, and tensors with the batch size of another one."""

import operator

from fleet._absent import spelled as _spelled
from fleet._framework import Variable, call


class _Shape(Variable):
    """The shape of a variable at run time. ``shape[0]`` is a size that `full` accepts."""

    __slots__ = ("_of",)

    def __getitem__(self, items):
        part = super().__getitem__(items)
        if not hasattr(items, "__index__"):
            return part
        items = operator.index(items)
        size = _Size(part.program, part._id)
        size._of, size._axis = self._of, items % self.shape[0]
        return size


class _Size(Variable):
    """One size of a shape."""

    __slots__ = ("_of", "_axis")


def shape(input):
    """Returns the sizes at run time, as int32."""
    if not isinstance(input, Variable):
        raise TypeError(f"shape(): input: expected a Variable, got {input!r}")
    made = call("shape", {"x": input}, input.program)
    sizes = _Shape(made.program, made._id)
    sizes._of = input
    return sizes


def full(shape, fill_value, dtype="float32", name=None):
    """Returns a tensor of one value. The first size may be the batch size of a variable:
    ``fleet.shape(x)[0]``."""
    sizes = [shape] if isinstance(shape, (int, Variable)) else list(shape)
    if not any(isinstance(size, Variable) for size in sizes):
        args = {"shape": shape, "fill_value": fill_value, "dtype": dtype, "name": name}
        return call("full", args)
    first, rest = sizes[0], sizes[1:]
    if any(isinstance(size, Variable) for size in rest) or getattr(first, "_axis", None) != 0:
        raise NotImplementedError(
            _spelled(
                "full(): shape: only the first size may be a variable, the batch size of another "
                "variable\n  help: write it as fleet.shape(x)[0]"
            )
        )
    args = {"x": first._of, "shape": [-1, *rest], "dtype": dtype, "value": fill_value}
    args["name"] = name
    return call("full_batch", args, first.program)


def zeros(shape, dtype="float32", name=None):
    """Returns a tensor of zeros, as `full` does."""
    return full(shape, 0.0, dtype or "float32", name)


def ones(shape, dtype="float32", name=None):
    """Returns a tensor of ones, as `full` does."""
    return full(shape, 1.0, dtype or "float32", name)
