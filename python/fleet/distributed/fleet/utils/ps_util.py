"""Inference with the tables of parameter servers: ``fleet.distributed.fleet.utils.ps_util``."""

from fleet import _fleet
from fleet._framework import Program, default_main_program, default_startup_program


class DistributedInfer:
    """A network for inference, whose lookups read the tables of the job.

    ``main_program`` was built apart, in ``unique_name.guard()``: its parameters have the names of
    those that are trained. Ids without a row read as zeros, and no row is created.
    """

    def __init__(self, main_program=None, startup_program=None):
        self.origin_main_program = main_program or default_main_program()
        self.origin_startup_program = startup_program or default_startup_program()

    def init_distributed_infer_env(self, exe, loss, role_maker=None, dirname=None):
        """Starts a job that only infers. It has no effect after training.

        Servers load the tables of rows from ``dirname`` and serve, and the call returns on them
        when all workers have stopped. Workers load the other parameters from there. The tables are
        those of the last ``minimize``, or without one those of SGD: they must have the rule that
        they were trained with.
        """
        from fleet.distributed import fleet
        from fleet.optimizer import SGD
        from fleet.static import load_vars

        from .. import _job

        if _job._job is None:
            fleet.init(role_maker)
        elif _job.joined().is_working():
            return
        program = loss.program
        if not _job.joined().has_job():
            optimizer = fleet.distributed_optimizer(SGD(0.1))
            optimizer.minimize(loss, self.origin_startup_program)
        if fleet.is_server():
            fleet.init_server(dirname)
            fleet.run_server()
            return
        exe.run(self.origin_startup_program)
        if dirname is not None:
            load_vars(exe, dirname, program, _fleet.dense_parameters(_job.joined()))
        fleet.init_worker()

    def get_dist_infer_program(self):
        """Returns the program for inference. It has the newest parameters of the servers."""
        from .._job import joined

        cell = _fleet.infer_program(
            joined(), self.origin_main_program._cell, self.origin_startup_program._cell
        )
        return Program._of(cell)
