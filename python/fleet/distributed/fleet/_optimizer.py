"""The optimizer of a job."""

from fleet import _fleet
from fleet._framework import default_startup_program, place

from ._job import default_strategy, joined
from .strategy import DistributedStrategy

_last_optimizer = None

#: The programs of the last `minimize`, which scripts for 1.x take from `fleet`.
_minimized = None


def distributed_optimizer(optimizer, strategy=None, *, rows=None, half_async=False):
    """Returns an optimizer that trains in the job. By default the strategy is that of `init`.

    ``rows`` is an optimizer for the rows of embedding tables, in place of ``optimizer``. With
    ``half_async``, workers of parameter servers wait for their own gradients and not for each
    other, if ``strategy.a_sync`` is off.
    """
    global _last_optimizer
    joined()
    strategy = default_strategy() if strategy is None else strategy
    if not isinstance(strategy, DistributedStrategy):
        raise TypeError(f"strategy: expected a DistributedStrategy, got {strategy!r}")
    _last_optimizer = DistributedOptimizer(optimizer, strategy, rows, half_async)
    return _last_optimizer


class DistributedOptimizer:
    """An optimizer and the strategy that distributes it."""

    def __init__(self, optimizer, strategy, rows, half_async):
        self.user_defined_optimizer = optimizer
        self.user_defined_strategy = strategy
        self._rows = rows
        self._half_async = half_async
        self._applied = None

    def minimize(self, loss, startup_program=None, parameter_list=None, no_grad_set=None):
        """Appends backward pass, communication and updates to both programs. Returns the names of
        the new ops, and the parameters with their gradients."""
        from fleet._backward import _check_loss, variables

        if parameter_list is not None or no_grad_set:
            raise NotImplementedError(
                "parameter_list and no_grad_set are not supported here\n  "
                "help: pass parameters to the optimizer, and set stop_gradient of variables"
            )
        _check_loss(loss)
        global _minimized
        startup = startup_program or default_startup_program()
        program = loss.program
        before = len(program.op_names)
        self._applied = joined().minimize(
            program._cell,
            startup._cell,
            place(),
            self.user_defined_optimizer,
            self.user_defined_strategy._cell,
            loss._id,
            self._rows,
            self._half_async,
        )
        _minimized = {"main_program": program, "startup_program": startup}
        pairs = []
        for param in program.all_parameters():
            grad = program._cell.find(f"{param.name}@GRAD")
            if grad is not None:
                pairs.append((param._id, grad))
        return program.op_names[before:], variables(program, pairs)

    def amp_init(self, place=None, scope=None, test_program=None, use_fp16_test=False):
        """Checks that the program computes in mixed precision. Parameters are 32-bit in every mode,
        so that there is nothing to convert."""
        if scope is not None or test_program is not None or use_fp16_test:
            raise NotImplementedError(
                "amp_init does not convert programs for tests\n  "
                "help: run program.clone(for_test=True), which computes as the training does"
            )
        _fleet.amp_init(joined())

    def get_loss_scaling(self):
        """Returns the loss scale of mixed precision, or None if the loss is not scaled."""
        return _fleet.loss_scaling(joined())

    def applied_strategies(self):
        """Returns the names of the strategies that `minimize` has applied."""
        return self._applied


def minimized(name):
    """Returns the main or the startup program of the last `minimize`."""
    if _minimized is None:
        raise RuntimeError(f"fleet.{name}: expected a call of minimize before it, got none")
    return _minimized[name]


def minimize(loss, startup_program=None, parameter_list=None, no_grad_set=None):
    """Calls `minimize` of the last distributed optimizer."""
    return _last().minimize(loss, startup_program, parameter_list, no_grad_set)


def amp_init(place=None, scope=None, test_program=None, use_fp16_test=False):
    """Calls `amp_init` of the last distributed optimizer."""
    _last().amp_init(place, scope, test_program, use_fp16_test)


def get_loss_scaling():
    """Calls `get_loss_scaling` of the last distributed optimizer."""
    return _last().get_loss_scaling()


def _last():
    if _last_optimizer is None:
        raise RuntimeError("there is no optimizer\n  help: call fleet.distributed_optimizer first")
    return _last_optimizer
