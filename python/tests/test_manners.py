"""What users of Python expect: Ctrl-C, logging, tensors of other libraries, notebooks."""

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time

import numpy as np

import fleet as package
from fleet import notebook, static
from fleet.distributed import fleet


def ran(code, **env):
    call = [sys.executable, "-c", code]
    env = {**os.environ, **env}
    return subprocess.run(call, capture_output=True, text=True, timeout=120, env=env)


def test_ctrl_c_ends_a_wait_for_a_worker_that_does_not_come():
    # Ports at which nothing listens.
    sockets = [socket.socket() for _ in range(2)]
    for it in sockets:
        it.bind(("127.0.0.1", 0))
    first, second = [f"127.0.0.1:{it.getsockname()[1]}" for it in sockets]
    env = {
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINER_ENDPOINTS": f"{first},{second}",
        "PADDLE_CURRENT_ENDPOINT": second,
        "FLEET_OPEN": "loopback",
    }
    code = """
import os, signal, threading, time
from fleet import _fleet
from fleet.distributed import fleet
def interrupt():
    while not _fleet.is_waiting():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
fleet.init(is_collective=True)
"""
    ended = ran(code, **env)
    assert ended.returncode == -signal.SIGINT
    assert "fleet: interrupted" in ended.stderr


def test_ctrl_c_ends_blocking_calls_of_python():
    code = """
import os, queue, signal, threading
from fleet.distributed import fleet
fleet.init(is_collective=True)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    queue.Queue().get()
except KeyboardInterrupt:
    print("in order")
"""
    ended = ran(code)
    assert (ended.returncode, ended.stdout) == (0, "in order\n"), ended.stderr


def test_ctrl_c_of_the_launcher_lets_workers_save(tmp_path):
    worker = """
import os, signal, sys, time
def save(*_):
    open(f"saved-{os.environ['PADDLE_TRAINER_ID']}", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
# The workers share the launcher's terminal.
signal.signal(signal.SIGINT, signal.SIG_IGN)
open(f"ready-{os.environ['PADDLE_TRAINER_ID']}", "w").close()
while True:
    time.sleep(0.01)
"""
    (tmp_path / "worker.py").write_text(worker)
    fleetrun = os.path.join(sysconfig.get_path("scripts"), "fleetrun")
    call = [fleetrun, "--nproc_per_node=2", "worker.py"]
    with subprocess.Popen(call, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as job:
        while not all((tmp_path / f"ready-{rank}").exists() for rank in range(2)):
            assert job.poll() is None
            time.sleep(0.01)
        job.send_signal(signal.SIGINT)
        _, errors = job.communicate(timeout=60)
    assert job.returncode == 130, errors
    assert all((tmp_path / f"saved-{rank}").exists() for rank in range(2))


def test_a_rank_that_exits_keeps_its_code(tmp_path):
    worker = """
import sys
from fleet.distributed import fleet
fleet.init(is_collective=True)
if fleet.worker_index() == 1:
    sys.exit(3)
fleet.barrier_worker()
"""
    (tmp_path / "worker.py").write_text(worker)
    fleetrun = os.path.join(sysconfig.get_path("scripts"), "fleetrun")
    call = [fleetrun, "--nproc_per_node=2", "worker.py"]
    ended = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    report = ended.stdout + ended.stderr
    assert "worker 1" in report and "exited with code 3" in report, report
    assert "different collectives" not in report


def test_ctrl_c_between_steps_is_an_exception():
    code = """
import os, signal, threading
from fleet import static
x = static.data("x", [None, 1])
exe = static.Executor()
try:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        exe.run(feed={"x": [[1.0]]}, fetch_list=[x + x])
except KeyboardInterrupt:
    exe.close()
    print("in order")
"""
    ended = ran(code)
    assert (ended.returncode, ended.stdout) == (0, "in order\n"), ended.stderr


def network():
    x, y = static.data("x", [None, 4]), static.data("y", [None, 1])
    return package.mean(package.nn.functional.square_error_cost(static.nn.fc(x, 1), y))


MESSAGES = """
import logging
if {configured}:
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
import fleet as package
from fleet import static
from fleet.distributed import fleet
fleet.init(is_collective=True)
x = static.data("x", [None, 4])
strategy = fleet.DistributedStrategy()
strategy.localsgd = True
fleet.distributed_optimizer(package.optimizer.SGD(0.1), strategy).minimize(package.mean(x))
"""


def test_messages_are_records_of_logging():
    code = MESSAGES.replace("package.mean(x)", "package.mean(static.nn.fc(x, 1))")
    plain = ran(code.format(configured=False)).stderr
    assert "fleet: nothing to do for localsgd" in plain
    configured = ran(code.format(configured=True)).stderr
    assert "fleet INFO nothing to do for localsgd" in configured
    assert "fleet: nothing to do" not in configured
    silent = code.format(configured=False).replace(
        "import fleet as package", "logging.getLogger('fleet').setLevel(logging.ERROR)\n"
        "import fleet as package", 1)
    assert ran(silent).stderr == ""


def test_a_handler_of_the_logger_gets_each_message_alone():
    code = MESSAGES.replace("package.mean(x)", "package.mean(static.nn.fc(x, 1))")
    code = code.format(configured=False)
    handler = "import logging, sys\n"
    handler += "logging.getLogger('fleet').addHandler(logging.StreamHandler(sys.stdout))\n"
    ended = ran(handler + code)
    assert "nothing to do for localsgd" in ended.stdout and ended.stderr == ""


def test_details_are_of_level_debug():
    code = MESSAGES.replace("package.mean(x)", "package.mean(static.nn.fc(x, 1))")
    code = code.format(configured=False)
    plain = ran(code).stderr
    assert "nothing to do for localsgd" in plain
    assert "Overview" not in plain and "in force" not in plain
    debug = "import logging\nlogging.getLogger('fleet').setLevel(logging.DEBUG)\n"
    assert "Overview" in ran(debug + code).stderr


class Exported:
    """A tensor of a library that has nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_tensors_of_other_libraries(exe, raises):
    x = static.data("x", [None, 3])
    rows = np.arange(6, dtype="float32").reshape(2, 3)
    (out,) = exe.run(feed={"x": Exported(rows)}, fetch_list=[x * 2.0])
    assert np.array_equal(np.from_dlpack(out), rows * 2)

    class OnGpu(Exported):
        def __dlpack__(self, **options):
            raise BufferError("the tensor is on a GPU")

    def fed(value):
        return lambda: exe.run(feed={"x": value}, fetch_list=[x])

    raises(ValueError, ["'x'", "OnGpu", "on a GPU"], fed(OnGpu(rows)))
    raises(ValueError, ["'x'", "float64"], fed(Exported(rows.astype("float64"))))
    w = static.create_parameter([2], "float32", name="w")
    exe.run(static.default_startup_program())
    assert np.from_dlpack(static.global_scope().find_var("w").get_tensor()).shape == (2,)
    static.global_scope()["w"] = Exported(np.ones(2, "float32"))
    assert static.global_scope()["w"].tolist() == [1.0, 1.0]
    assert w.shape == (2,)


def trained(steps):
    fleet.init(is_collective=True)
    loss = network()
    fleet.distributed_optimizer(package.optimizer.SGD(0.1)).minimize(loss)
    exe = static.Executor(threads=1)
    exe.run(static.default_startup_program())
    xs = np.random.default_rng(fleet.worker_index()).random((8, 4), dtype="float32")
    feed = {"x": xs, "y": xs.sum(1, keepdims=True)}
    losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(steps)]
    return fleet.worker_num(), losses[0], losses[-1]


def test_a_job_from_a_notebook():
    count, first, last = notebook.launch(trained, (20,), nproc=2)
    assert count == 2 and last < first / 2


def test_a_worker_of_a_notebook_that_fails(raises):
    def fails():
        fleet.init(is_collective=True)
        if fleet.worker_index() == 1:
            raise KeyError("broken")
        fleet.barrier_worker()

    raises(RuntimeError, ["worker 1 failed", "KeyError: 'broken'"], lambda: notebook.launch(fails))
    raises(RuntimeError, ["worker 0 ended", "exit code 3"], lambda: notebook.launch(
        lambda: os._exit(3), nproc=1
    ))
    raises(RuntimeError, ["cannot be sent"], lambda: notebook.launch(lambda: fails, nproc=1))
    raises(ValueError, ["nproc"], lambda: notebook.launch(fails, nproc=0))
    raises(TypeError, ["function"], lambda: notebook.launch("fails"))


def test_ctrl_c_stops_a_job_from_a_notebook():
    code = """
import os, signal
from fleet import notebook
def waits():
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()
try:
    notebook.launch(waits, nproc=1)
except KeyboardInterrupt:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("no process left")
"""
    ended = ran(code)
    assert ended.stdout == "no process left\n", ended.stderr
