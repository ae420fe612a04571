"""Small jobs of several workers from a notebook: ``fleet.notebook.launch(train, nproc=2)``."""

import multiprocessing
import multiprocessing.connection
import os
import secrets
import socket
import sys
import threading
import traceback

#: Time that a worker has to end after SIGTERM.
_GRACE = 5.0


def launch(function, args=(), nproc=2):
    """Calls ``function(*args)`` in ``nproc`` workers of a collective job, which are forks of this
    process, and returns what worker 0 returns.

    A worker calls ``fleet.init(is_collective=True)``, as in a script that `fleetrun` starts. It
    begins with empty default programs and an empty scope. If one fails, the others are stopped, and
    its traceback is the text of a `RuntimeError`. Ctrl-C, or "interrupt" in a notebook, stops all.
    """
    if not callable(function):
        raise TypeError(f"function: expected a function, got {function!r}")
    if isinstance(nproc, bool) or not isinstance(nproc, int) or nproc < 1:
        raise ValueError(f"nproc: expected 1 or more, got {nproc!r}")
    context = multiprocessing.get_context("fork")
    environments = _environments(nproc)
    # Workers end when the other end of this pipe is closed: this process has ended.
    alive, held = os.pipe()
    results, workers = [], []
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        for environment in environments:
            result, sender = context.Pipe(duplex=False)
            work = (function, args, environment, sender, alive, held)
            worker = context.Process(target=_work, args=work, daemon=True)
            worker.start()
            sender.close()
            results.append(result)
            workers.append(worker)
        return _gather(workers, results)
    finally:
        _stop(workers)
        os.close(alive)
        os.close(held)


def _environments(nproc):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(nproc)]
    endpoints = [f"127.0.0.1:{it.getsockname()[1]}" for it in sockets]
    for it in sockets:
        it.close()
    job = {
        "PADDLE_TRAINERS_NUM": str(nproc),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "FLEET_TOKEN": secrets.token_hex(16),
    }
    return [
        {**job, "PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": endpoint}
        for rank, endpoint in enumerate(endpoints)
    ]


def _work(function, args, environment, sender, alive, held):
    os.close(held)
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    os.environ.update(environment)
    try:
        outcome = (True, _run(function, args))
    except BaseException:
        outcome = (False, traceback.format_exc())
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        sender.send(outcome)
    except Exception as error:
        sender.send((False, f"the result cannot be sent to the notebook: {error}"))


def _run(function, args):
    from fleet import _fleet, static
    from fleet.distributed.fleet import _job
    from fleet.utils import unique_name

    # The job of the process that forked this one.
    _job._job = None
    programs = static.program_guard(static.Program(), static.Program())
    with programs, static.scope_guard(static.Scope()), unique_name.guard():
        result = function(*args)
    if _job._job is not None:
        _fleet.stop_worker(_job._job)
    return result


def _end_with_parent(alive):
    os.read(alive, 1)
    os._exit(1)


def _gather(workers, results):
    """Waits for all workers and returns the result of the first."""
    waiting = dict(zip(results, range(len(results))))
    first = None
    while waiting:
        for result in multiprocessing.connection.wait(list(waiting)):
            rank = waiting.pop(result)
            try:
                succeeded, value = result.recv()
            except EOFError:
                workers[rank].join(_GRACE)
                code = workers[rank].exitcode
                raise RuntimeError(f"worker {rank} ended without a result (exit code {code})")
            if not succeeded:
                raise RuntimeError(f"worker {rank} failed:\n{value}")
            if rank == 0:
                first = value
    return first


def _stop(workers):
    for worker in workers:
        if worker.exitcode is None:
            worker.terminate()
    for worker in workers:
        worker.join(_GRACE)
        if worker.exitcode is None:
            worker.kill()
            worker.join()
