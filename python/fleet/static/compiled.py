"""Programs and executors with settings of the 1.x interface.

A process has one device, which computes whole batches with all cores, and the executor makes its
fusions for every program. So a compiled program is the program itself.
"""

from fleet._absent import spelled as _spelled
from fleet._attributes import BuildStrategy, ExecutionStrategy
from fleet._executor import Executor, global_scope
from fleet._framework import Program, default_main_program, warn_user

#: Fields that ask for what the executor does for every program. They do not change results.
_DONE = {
    "enable_addto",
    "enable_auto_fusion",
    "enable_inplace",
    "fuse_all_optimizer_ops",
    "fuse_bn_act_ops",
    "fuse_bn_add_act_ops",
    "fuse_broadcast_ops",
    "fuse_elewise_add_act_ops",
    "fuse_ewise_add_act_ops",
    "fuse_gemm_epilogue",
    "fuse_relu_depthwise_conv",
}

#: Fields about temporary variables, which need no cleaning: the executor plans their memory.
_NEEDLESS = {"num_iteration_per_drop_scope"}


class CompiledProgram(Program):
    """A program, and settings of its execution: the same program under another name."""

    __slots__ = ()

    def __init__(self, program_or_graph, build_strategy=None):
        if not isinstance(program_or_graph, Program):
            raise TypeError(f"program_or_graph: expected a Program, got {program_or_graph!r}")
        self._cell = program_or_graph._cell
        self._variables = program_or_graph._variables
        _check("CompiledProgram", build_strategy, None)

    def with_data_parallel(
        self,
        loss_name=None,
        build_strategy=None,
        exec_strategy=None,
        share_vars_from=None,
        places=None,
    ):
        """Returns the program: one executor computes the batch of all places."""
        if loss_name is not None:
            self.var(loss_name)
        _check("with_data_parallel", build_strategy, exec_strategy)
        return self


class ParallelExecutor:
    """An executor for one program."""

    def __init__(
        self,
        use_cuda=False,
        loss_name=None,
        main_program=None,
        share_vars_from=None,
        exec_strategy=None,
        build_strategy=None,
        num_trainers=1,
        trainer_id=0,
        scope=None,
    ):
        if num_trainers != 1 or trainer_id != 0:
            raise NotImplementedError(
                _spelled(
                    f"ParallelExecutor: num_trainers: expected 1, got {num_trainers}\n  "
                    "help: use fleet.distributed.fleet.distributed_optimizer, and fleetrun"
                )
            )
        _check("ParallelExecutor", build_strategy, exec_strategy)
        self._program = main_program or default_main_program()
        self._scope = scope or global_scope()
        self._executor = Executor()

    def run(self, fetch_list, feed=None, feed_dict=None, return_numpy=True):
        """Runs the program once. ``feed`` is a dict of whole arrays."""
        feed = feed_dict if feed is None else feed
        return self._executor.run(self._program, feed, fetch_list, scope=self._scope)

    @property
    def device_count(self):
        """The number of devices of the process: 1."""
        return 1


def _check(what, build_strategy, exec_strategy):
    """Refuses assigned fields that would have no effect."""
    for name, given, kind in [
        ("build_strategy", build_strategy, BuildStrategy),
        ("exec_strategy", exec_strategy, ExecutionStrategy),
    ]:
        if given is None:
            continue
        if not isinstance(given, kind):
            raise TypeError(f"{what}: {name}: expected a {kind.__name__}, got {given!r}")
        defaults = kind()
        for field, value in given._assigned.items():
            if field in _DONE or field in _NEEDLESS or value == getattr(defaults, field):
                continue
            if field == "num_threads":
                warn_user(
                    f"{what}: {name}.num_threads has no effect\n  "
                    "help: set the threads of the executor: Executor(threads=..)"
                )
                continue
            raise NotImplementedError(
                _spelled(
                    f"{what}: {name}.{field} is supported in jobs only\n  "
                    f"help: assign the {kind.__name__} to a field of "
                    "fleet.distributed.fleet.DistributedStrategy"
                )
            )
