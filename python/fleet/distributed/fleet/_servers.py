"""Servers and workers of a job with parameter servers."""

import os
from collections import namedtuple

from fleet import _checks, _files, _fleet
from fleet._executor import Scope, scope_guard
from fleet._framework import Program, Variable

from ._job import joined, topology
from .role_maker import Role


def init_server(dirname=None, var_names=None, *, durable=None):
    """Creates this server's part of the tables, and listens.

    ``dirname`` is a save: its tables of rows are loaded, all or those of the parameters in
    ``var_names``. Other tables start empty. Dense parameters come from worker 0, which loads them
    with ``static.load_vars`` before ``init_worker``.

    ``durable`` is a folder in which the tables are kept: `fleetrun` starts a server that dies
    again, and training resumes. It belongs to one job.
    """
    if durable is not None and dirname is not None:
        raise ValueError("durable conflicts with dirname: the folder has the tables of its own job")
    if var_names is not None:
        if dirname is None:
            raise ValueError("var_names: expected None without dirname")
        if isinstance(var_names, str):
            raise TypeError(f"var_names: expected a list of names, got {var_names!r}")
        var_names = [_name(item) for item in var_names]
    dirname = None if dirname is None else os.fspath(dirname)
    _fleet.init_server(joined(), dirname, var_names, None if durable is None else os.fspath(durable))


def run_server():
    """Serves until the last worker has called ``stop_worker``."""
    _fleet.run_server(joined())


def init_worker(scopes=None):
    """Connects this worker to all servers and waits for the other workers. Worker 0 sends its
    parameters to the servers, and the others pull them. The startup program must have run."""
    if scopes is not None:
        raise NotImplementedError(
            "scopes is not supported\n  help: run the startup program in the scope of the worker"
        )
    _fleet.init_worker(joined())


def resume():
    """Returns the number of this worker's steps that all tables have, after ``init_worker``.

    It is 0, unless `fleetrun` started this worker again. Then feed it the batches after that step,
    so that every batch is in every table once.
    """
    return _fleet.resume(joined())


def stop_worker():
    """Sends all pending gradients, and leaves the job. The last worker stops the servers."""
    _fleet.stop_worker(joined())


def is_worker():
    """Returns whether this process is a worker."""
    return topology().role == Role.WORKER


def is_server():
    """Returns whether this process is a parameter server."""
    return topology().role == Role.SERVER


def is_first_worker():
    """Returns whether this is worker 0, which saves and prints for all."""
    return topology().is_first_worker


def worker_index():
    """Returns this worker's rank, from 0."""
    return topology().rank


def server_index():
    """Returns this server's rank, from 0."""
    return topology().rank


def worker_num():
    """Returns the number of workers."""
    return topology().worker_num


def server_num():
    """Returns the number of parameter servers; 0 in a process without a launcher."""
    return topology().server_num


def node_num():
    """Returns the number of machines that run workers."""
    return topology().node_num


def worker_endpoints(to_string=False):
    """Returns the endpoints of the workers, as a list or separated by commas."""
    endpoints = topology().worker_endpoints
    return ",".join(endpoints) if to_string else endpoints


def server_endpoints(to_string=False):
    """Returns the endpoints of the servers, as a list or separated by commas."""
    endpoints = topology().server_endpoints
    return ",".join(endpoints) if to_string else endpoints


def barrier_worker():
    """Waits until all workers have called it."""
    joined().barrier("worker")


def save_persistables(executor, dirname=None, main_program=None, mode=0, *, format="binary"):
    """Saves what persists, on worker 0; other workers return at once.

    If workers divide the model (sharding, tensor parallelism, pipelines, divided classes), all of
    them must call it: they send worker 0 what it does not have.

    A job with servers saves all tables of all servers. ``mode`` is 0 for all rows, 1 for the rows
    that serving needs (base), 2 for those of them that changed since the last save of mode 1 or 2
    (delta), and 3 for all rows, after which a day has passed. ``format`` is "binary" or "text".
    Only ``dirname`` may be given: ``save_persistables("folder")``. A number in the place of
    ``main_program`` is the mode.
    """
    if isinstance(main_program, int) and not isinstance(main_program, bool):
        main_program, mode = None, main_program
    if dirname is None and isinstance(executor, (str, os.PathLike)):
        executor, dirname = None, executor
    if dirname is None:
        raise TypeError("save_persistables() misses the argument 'dirname'")
    dirname = _checks.path("dirname", dirname)
    job = joined()
    if job.has_servers():
        if is_server():
            raise ValueError("save_persistables: expected a worker, got a server")
        cell = None if main_program is None else _files._program("main_program", main_program)._cell
        if is_first_worker():
            _fleet.save_tables(job, cell, dirname, mode, format)
        return
    if mode != 0:
        raise NotImplementedError("mode: only 0 (all variables) is supported without servers")
    if job.divides_state():
        _save_whole(lambda program: _files.save_persistables(executor, dirname, program))
    elif is_first_worker():
        _files.save_persistables(executor, dirname, main_program)


def _save_whole(save):
    """Calls ``save`` with the program of the whole model, on worker 0, in the scope of its state."""
    whole = whole_model()
    if whole is not None:
        with scope_guard(whole.scope):
            save(whole.program)


#: A model with the state of all workers: a program that evaluates it, and a scope for it.
WholeModel = namedtuple("WholeModel", "program scope")


def whole_model():
    """Returns the model with the state of all workers, on worker 0, and None on the others. All
    workers of a collective job must call it, after training steps of the last `minimize`.

    It evaluates a model whose layers or parameters the workers divide::

        whole = fleet.whole_model()
        if whole is not None:
            with static.scope_guard(whole.scope):
                exe.run(whole.program, feed=.., fetch_list=[loss])
    """
    job = joined()
    if job.has_servers():
        raise ValueError(
            "whole_model: the job has parameter servers, which have the model\n  "
            "help: main_program.clone(for_test=True) evaluates it"
        )
    made = _fleet.whole_model(job)
    if made is None:
        return None
    program, scope = made
    return WholeModel(Program._of(program), Scope._of(scope))


def save_inference_model(
    executor,
    dirname,
    feeded_var_names,
    target_vars,
    main_program=None,
    export_for_deployment=True,
    mode=0,
):
    """Saves a model for inference, on worker 0. If workers divide the model, all of them must call
    it. A job with servers also saves the tables, which
    the lookups of the model refer to; the program is in the folder ``model``.
    ``static.load_inference_model`` loads both."""
    dirname = _checks.path("dirname", dirname)
    job = joined()
    if job.divides_state():
        # This worker may have none of them.
        feeds = _files._names(_files._listed("feeded_var_names", feeded_var_names))
        targets = _files._names(_files._listed("target_vars", target_vars))
        save = _files.save_inference_model
        _save_whole(lambda program: save(dirname, feeds, targets, executor, program))
        return
    program, _, targets = _files._model_vars(feeded_var_names, target_vars, main_program)
    if not is_first_worker():
        return
    if not job.has_servers():
        _files.save_inference_model(dirname, feeded_var_names, target_vars, executor, main_program)
        return
    cell = None if main_program is None else program._cell
    _fleet.save_model(job, cell, dirname, targets, mode)


def load_model(path, mode=0):
    """Loads a save of a job with servers, with the state of optimizers. All workers call it after
    ``init_worker``: worker 0 loads the tables, and the others then take them over."""
    if mode != 0:
        raise NotImplementedError(f"mode: expected 0 (all that the save has), got {mode!r}")
    path = _checks.path("path", path)
    job = joined()
    if is_first_worker():
        _fleet.load_model(job, path)
        barrier_worker()
    else:
        barrier_worker()
        _fleet.load_model(job, path)


def save_one_table(table, path, mode=0, *, format="binary"):
    """Saves the rows of one table, given the name of its parameter, on worker 0."""
    if is_first_worker():
        _fleet.save_table(joined(), _name(table), _checks.path("path", path), mode, format)


def load_one_table(table, path, mode=0):
    """Loads the rows of one table, given the name of its parameter, on worker 0."""
    if mode != 0:
        raise NotImplementedError(f"mode: expected 0 (all that the save has), got {mode!r}")
    if is_first_worker():
        _fleet.load_table(joined(), _name(table), _checks.path("path", path))


def shrink(threshold=None):
    """Deletes rows that no worker has used for more than ``threshold`` days, on worker 0. The
    default is that of the table. Click tables also decay, and lose rows with a low score."""
    if threshold is not None and not (isinstance(threshold, int) and 0 <= threshold <= 255):
        raise ValueError(f"threshold: expected None or days from 0 to 255, got {threshold!r}")
    if is_first_worker():
        _fleet.shrink(joined(), threshold)


def save_cache_model(dirname, **configs):
    """Not supported: there is no cache of rows."""
    raise NotImplementedError(
        "save_cache_model is not supported: servers hold all rows in memory\n  "
        "help: fleet.save_persistables(exe, dirname, mode=1) saves the rows that serving needs"
    )


def _name(item):
    if isinstance(item, Variable):
        return item.name
    if isinstance(item, str):
        return item
    raise TypeError(f"expected a variable or its name, got {item!r}")
