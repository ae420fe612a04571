"""Metrics across all workers: ``fleet.metrics``.

Each worker passes what it has counted: an array, a number, a variable, or the name of a variable in
``scope`` (the global scope by default). All workers make the same calls, and get the same value.
"""

from fleet._absent import absent as _absent
from fleet import _executor
from fleet import _numpy as np
from fleet._executor import Scope, global_scope
from fleet._framework import Variable

from ._job import joined
from ._util import UtilBase, as_floats, as_type


def sum(input, scope=None, util=None):
    """Returns the sum over workers, element by element."""
    return _elementwise("sum", input, scope, util)


def max(input, scope=None, util=None):
    """Returns the maximum over workers, element by element."""
    return _elementwise("max", input, scope, util)


def min(input, scope=None, util=None):
    """Returns the minimum over workers, element by element."""
    return _elementwise("min", input, scope, util)


def acc(correct, total, scope=None, util=None):
    """Returns the correct predictions divided by all predictions."""
    return _ratio("acc", correct, total, scope, util)


def mae(abserr, total_ins_num, scope=None, util=None):
    """Returns the mean absolute error, from the sum of errors and the number of samples."""
    return _ratio("mae", abserr, total_ins_num, scope, util)


def mse(sqrerr, ins_num, scope=None, util=None):
    """Returns the mean squared error, from the sum of squared errors and the number of samples."""
    return _ratio("mse", sqrerr, ins_num, scope, util)


def rmse(sqrerr, total_ins_num, scope=None, util=None):
    """Returns the square root of `mse`."""
    return _ratio("rmse", sqrerr, total_ins_num, scope, util)


def auc(stat_pos, stat_neg, scope=None, util=None):
    """Returns the area under the ROC curve, from the positives and the negatives in each bucket of
    scores, such as those of ``static.auc``."""
    return _ratio("auc", stat_pos, stat_neg, scope, util)


def _elementwise(name, input, scope, util):
    array = _array(input, scope)
    _check(util)
    reduced = joined().metric(name, as_floats(f"metrics.{name}", array), [])
    made = as_type(f"metrics.{name}", reduced, array)
    return made if _executor.convert_fetched is None else _executor.convert_fetched(made)


def _ratio(name, first, second, scope, util):
    _check(util)
    counts = [as_floats(f"metrics.{name}", _array(input, scope)) for input in (first, second)]
    return joined().metric(name, *counts)[0]


def _array(input, scope):
    scope = global_scope() if scope is None else scope
    if not isinstance(scope, Scope):
        raise TypeError(f"scope: expected a Scope, got {scope!r}")
    if isinstance(input, Variable):
        input = input.name
    if isinstance(input, str):
        return scope[input]
    array = np.asarray(input)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"expected numbers, a variable or its name, got {input!r}")
    return array


def _check(util):
    if util is not None and not isinstance(util, UtilBase):
        raise TypeError(f"util: expected fleet.util, got {util!r}")


__getattr__ = _absent(__name__)
