"""The job that this process has joined."""

import atexit
import copy
import functools
import os
import sys
import threading
import traceback

from fleet import _fleet

from .role_maker import PaddleCloudRoleMaker, Role, _RoleMaker
from .strategy import DistributedStrategy

_job = None
#: The process that has joined it; a fork has not.
_process = None
_strategy = None
#: The last argument of `sys.exit`.
_exit_status = None


def init(role_maker=None, is_collective=False, strategy=None):
    """Joins the job that the environment describes, or a role maker.

    With ``is_collective`` all workers exchange gradients, and the call returns when all have
    joined. Otherwise the job has parameter servers. A process without a launcher is worker 0 of 1,
    and has the tables of a server in its own memory. ``strategy`` is that of optimizers which are
    distributed without one. Further calls of a process of a job keep its place, and set the strategy.
    """
    global _job, _process, _strategy
    if role_maker is None:
        role_maker = PaddleCloudRoleMaker(is_collective=is_collective)
    elif not isinstance(role_maker, _RoleMaker):
        raise TypeError(f"role_maker: expected a role maker, got {role_maker!r}")
    elif is_collective and not role_maker._is_collective:
        raise ValueError(
            "is_collective=True conflicts with the role maker\n  "
            f"help: pass it to the role maker: {type(role_maker).__name__}(is_collective=True)"
        )
    if strategy is not None and not isinstance(strategy, DistributedStrategy):
        raise TypeError(f"strategy: expected a DistributedStrategy, got {strategy!r}")
    place = role_maker._topology()
    if place.role not in (Role.WORKER, Role.SERVER):
        raise NotImplementedError(
            "heterogeneous workers and coordinators are not supported\n  "
            "help: start the job with servers and workers: fleetrun --server_num=1 --worker_num=2"
        )
    _strategy = copy.deepcopy(strategy)
    # The other processes have joined once, and would not be met again.
    if _process == os.getpid() and _has_others(place) and place == _job.topology():
        return
    _job, _process = _fleet.FleetCell.join(place), os.getpid()
    atexit.register(_finish, _job, _process)
    _note_exit_status()


def _has_others(place):
    """Returns whether the job has other processes."""
    return place.worker_num + place.server_num > 1


def _note_exit_status():
    """Keeps the argument of `sys.exit`, which the interpreter does not tell `_finish`."""
    leave = sys.exit
    if hasattr(leave, "__wrapped__"):
        return

    @functools.wraps(leave)
    def noted(status=None, /):
        global _exit_status
        if threading.current_thread() is threading.main_thread():
            _exit_status = status
        leave(status)

    sys.exit = noted


def _has_failed():
    """Returns whether the script ends with an exception or an exit status."""
    # In a notebook the last exception is that of a cell, and the job has continued.
    raised = getattr(sys, "last_type", None) is not None and "ipykernel" not in sys.modules
    return raised or _exit_status not in (None, 0)


def _finish(job, process):
    # A worker that has failed has not finished: the launcher stops the others.
    if job is not _job or _has_failed():
        return
    # A fork has no part in the job.
    if process != os.getpid() or job.topology().role != Role.WORKER:
        return
    try:
        _fleet.stop_worker(job)
    except BaseException:
        # The interpreter ignores exceptions here, and the job has failed.
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def joined():
    """Returns the job."""
    if _job is None:
        raise RuntimeError("the job has not been joined\n  help: call fleet.init first")
    return _job


def default_strategy():
    """Returns a copy of the strategy that `init` got, or a new one."""
    return DistributedStrategy() if _strategy is None else copy.deepcopy(_strategy)


def topology():
    """Returns the place of this process in the job."""
    return joined().topology()
