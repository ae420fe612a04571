"""``fleet.fluid.DistributeTranspiler``: a program that trains alone, rewritten for servers and
trainers by a list of endpoints."""

import atexit
import os

from fleet import _fleet
from fleet._framework import Program, default_main_program, default_startup_program, place
from fleet.distributed.fleet import _job


class DistributeTranspilerConfig:
    """Switches of the rewrite. ``print(config)`` shows them with their defaults."""

    __slots__ = ("_cell", "_assigned")

    def __init__(self):
        object.__setattr__(self, "_cell", _fleet.TranspilerConfigCell())
        object.__setattr__(self, "_assigned", {})

    def __setattr__(self, name, value):
        if name == "split_method":
            # A class of the 1.x interface, or its name.
            value = getattr(value, "__name__", value)
        self._cell.set(name, value)
        self._assigned[name] = value

    def __getattr__(self, name):
        if not name.startswith("_") and name in self._assigned:
            return self._assigned[name]
        raise AttributeError(f"DistributeTranspilerConfig: '{name}' was not assigned")

    def __repr__(self):
        return repr(self._cell)


class DistributeTranspiler:
    """Rewrites a program after ``minimize`` for the trainers and servers of a job.

    ::

        t = fluid.DistributeTranspiler()
        t.transpile(trainer_id, pservers="10.0.0.1:6174,10.0.0.2:6174", trainers=2)
        if is_server:
            exe.run(t.get_startup_program(endpoint))
            exe.run(t.get_pserver_program(endpoint))    # until the last trainer has stopped
        else:
            exe.run(fluid.default_startup_program())
            exe.run(t.get_trainer_program(), feed=feed)
    """

    def __init__(self, config=None):
        if config is not None and not isinstance(config, DistributeTranspilerConfig):
            raise TypeError(f"config: expected a DistributeTranspilerConfig, got {config!r}")
        self._config = config or DistributeTranspilerConfig()
        self._cell = None

    def transpile(
        self,
        trainer_id,
        program=None,
        pservers="127.0.0.1:6174",
        trainers=1,
        sync_mode=None,
        startup_program=None,
        current_endpoint="127.0.0.1:6174",
    ):
        """Rewrites ``program`` and ``startup_program`` into those of trainer ``trainer_id``.

        In mode pserver, ``pservers`` has the endpoints of the servers, and ``trainers`` is the
        number of trainers. In modes nccl2 and collective, ``trainers`` has the endpoints of the
        trainers, and the startup program joins them.
        """
        self._main = program or default_main_program()
        self._startup = startup_program or default_startup_program()
        self._cell = _fleet.transpile(
            self._config._cell,
            self._main._cell,
            self._startup._cell,
            place(),
            trainer_id,
            pservers,
            trainers,
            sync_mode,
            current_endpoint,
        )
        self._trainer = None
        if not self._cell.has_servers():
            self._join()

    def get_trainer_program(self, wait_port=True):
        """Returns the program that a trainer runs in every step. Its first run joins the job."""
        self._transpiled()
        if not self._cell.has_servers():
            return self._main
        program = _TrainerProgram._of(self._main._cell)
        program._transpiler = self
        return program

    def get_pserver_program(self, endpoint):
        """Returns the program of a server. A run of it serves until the last trainer has stopped."""
        program = _ServerProgram._of(self._transpiled().pserver_program(endpoint))
        program._serve = lambda: self._cell.serve(endpoint)
        return program

    def get_pserver_programs(self, endpoint):
        """Returns that program, and the one that creates its parameters."""
        return self.get_pserver_program(endpoint), self.get_startup_program(endpoint)

    def get_startup_program(self, endpoint, pserver_program=None, startup_program=None):
        """Returns the program that creates the parameters of a server."""
        return Program._of(self._transpiled().startup_program(endpoint))

    def _transpiled(self):
        if self._cell is None:
            raise RuntimeError("there are no programs\n  help: call transpile first")
        return self._cell

    def _join(self):
        self._trainer = self._cell.join(self._main._cell, self._startup._cell)
        _job._job = self._trainer
        atexit.register(_job._finish, self._trainer, os.getpid())

    def _begin(self, executor, scope):
        """Joins the job and the servers, with the values that the scope has."""
        kept = {name: scope[name] for name in self._startup._persistables("all") if name in scope}
        self._join()
        executor._cell.run(self._startup._cell, [], [], scope._cell)
        for name, value in kept.items():
            scope[name] = value
        _fleet.init_worker(self._trainer)


class _TrainerProgram(Program):
    """A trainer's program in mode pserver."""

    __slots__ = ("_transpiler",)

    def _begin(self, executor, scope):
        if self._transpiler._trainer is None:
            self._transpiler._begin(executor, scope)
        return False


class _ServerProgram(Program):
    """A server's program."""

    __slots__ = ("_serve",)

    def _begin(self, executor, scope):
        self._serve()
        return True
