"""This process as a member of its job: ``from fleet.distributed import fleet``.

Collective jobs: every worker trains on its part of each batch, and gradients are summed.
"""

import atexit
import sys

from fleet._absent import absent as _absent
from fleet import _fleet
from fleet._framework import default_startup_program, place

from . import base, role_maker
from .role_maker import PaddleCloudRoleMaker, UserDefinedRoleMaker
from .strategy import DistributedStrategy

_job = None
_last_optimizer = None


def init(role_maker=None, is_collective=False, strategy=None):
    """Joins the job that the environment describes, or a role maker. Returns when all workers have
    joined. A process without a launcher is worker 0 of 1."""
    global _job
    if role_maker is not None:
        is_collective = is_collective or role_maker._is_collective
    if not is_collective:
        raise NotImplementedError(
            "parameter servers are not supported from Python\n  "
            "help: use a collective job, fleet.init(is_collective=True), or the Rust API "
            "(Fleet::parameter_server)"
        )
    if strategy is not None and not isinstance(strategy, DistributedStrategy):
        raise TypeError(f"strategy: expected a DistributedStrategy, got {strategy!r}")
    if isinstance(role_maker, UserDefinedRoleMaker):
        _job = _fleet.FleetCell.described(role_maker.current_id, role_maker.worker_endpoints)
    else:
        _job = _fleet.FleetCell.collective()
    atexit.register(_finish, _job)


def _finish(job):
    # A worker that ends with an exception has not finished: the launcher stops the others.
    if job is _job and getattr(sys, "last_type", None) is None:
        job.finish()


def _joined():
    if _job is None:
        raise RuntimeError("the job has not been joined\n  help: call fleet.init first")
    return _job


def is_worker():
    """Returns whether this process is a worker."""
    _joined()
    return True


def is_server():
    """Returns whether this process is a parameter server."""
    _joined()
    return False


def is_first_worker():
    """Returns whether this is worker 0, which saves and prints for all."""
    return _joined().is_first_worker()


def worker_index():
    """Returns this worker's rank, from 0."""
    return _joined().worker_index()


def worker_num():
    """Returns the number of workers."""
    return _joined().worker_num()


def server_num():
    """Returns the number of parameter servers."""
    _joined()
    return 0


def worker_endpoints(to_string=False):
    """Returns the endpoints of the workers, as a list or separated by commas."""
    endpoints = _joined().worker_endpoints()
    return ",".join(endpoints) if to_string else endpoints


def barrier_worker():
    """Waits until all workers have called it."""
    _joined().barrier()


def stop_worker():
    """Waits until all workers have finished, and leaves the job."""
    _joined().finish()


def distributed_optimizer(optimizer, strategy=None):
    """Returns an optimizer that trains on all workers of the job."""
    global _last_optimizer
    _joined()
    strategy = strategy or DistributedStrategy()
    if not isinstance(strategy, DistributedStrategy):
        raise TypeError(f"strategy: expected a DistributedStrategy, got {strategy!r}")
    _last_optimizer = DistributedOptimizer(optimizer, strategy)
    return _last_optimizer


class DistributedOptimizer:
    """An optimizer and the strategy that distributes it."""

    def __init__(self, optimizer, strategy):
        self.user_defined_optimizer = optimizer
        self.user_defined_strategy = strategy
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
        startup = startup_program or default_startup_program()
        program = loss.program
        before = len(program.op_names)
        self._applied = _joined().minimize(
            program._cell,
            startup._cell,
            place(),
            self.user_defined_optimizer,
            self.user_defined_strategy._cell,
            loss._id,
        )
        pairs = []
        for param in program.all_parameters():
            grad = program._cell.find(f"{param.name}@GRAD")
            if grad is not None:
                pairs.append((param._id, grad))
        return program.op_names[before:], variables(program, pairs)

    def applied_strategies(self):
        """Returns the names of the strategies that `minimize` has applied."""
        return self._applied


def minimize(loss, startup_program=None, parameter_list=None, no_grad_set=None):
    """Calls `minimize` of the last distributed optimizer."""
    if _last_optimizer is None:
        raise RuntimeError("there is no optimizer\n  help: call fleet.distributed_optimizer first")
    return _last_optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)


def save_persistables(executor, dirname, main_program=None, mode=0):
    """Saves all variables that persist, on worker 0."""
    from fleet._files import save_persistables

    if mode != 0:
        raise NotImplementedError("mode: only 0 (all variables) is supported in collective jobs")
    if _joined().is_first_worker():
        save_persistables(executor, dirname, main_program)


def save_inference_model(
    executor, dirname, feeded_var_names, target_vars, main_program=None, export_for_deployment=True
):
    """Saves a model for inference, on worker 0."""
    from fleet.fluid.io import save_inference_model

    if _joined().is_first_worker():
        save_inference_model(dirname, feeded_var_names, target_vars, executor, main_program)


class _Util:
    """Communication between workers outside of programs: ``fleet.util``."""

    def all_reduce(self, input, mode="sum", comm_world="worker"):
        """Reduces every worker's numbers element by element."""
        import numpy as np

        _workers_only(comm_world)
        array = np.asarray(input, dtype="float64")
        reduced = np.array(_joined().all_reduce(array.ravel().tolist(), mode))
        return reduced.reshape(array.shape).astype(np.asarray(input).dtype)

    def all_gather(self, input, comm_world="worker"):
        """Returns every worker's number, in order of rank."""
        _workers_only(comm_world)
        return [numbers[0] for numbers in _joined().all_gather([float(input)])]

    def barrier(self, comm_world="worker"):
        """Waits until all workers have called it."""
        _workers_only(comm_world)
        _joined().barrier()

    def get_file_shard(self, files):
        """Returns this worker's part of a list of files."""
        return _joined().file_shard(list(files))

    def print_on_rank(self, message, rank_id):
        """Prints on one worker."""
        if _joined().worker_index() == rank_id:
            print(message, flush=True)


def _workers_only(comm_world):
    if comm_world not in ("worker", "all"):
        raise ValueError(f"comm_world: a collective job has workers only, got {comm_world!r}")


util = _Util()

__getattr__ = _absent(__name__)
