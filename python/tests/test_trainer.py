"""`fleet.Trainer`: epochs, validation, early stop, checkpoints and callbacks."""

import csv
import subprocess
import sys
import sysconfig
import os
from pathlib import Path

import numpy as np
import pytest

import fleet as package
from fleet import static
from fleet.distributed import fleet
from fleet.io import from_table


def network():
    x, y = static.data("x", [None, 2]), static.data("y", [None, 1])
    loss = package.mean(package.nn.functional.square_error_cost(static.nn.fc(x, 1), y))
    fleet.init(is_collective=True)
    fleet.distributed_optimizer(package.optimizer.SGD(0.2)).minimize(loss)
    return x, y, loss


def table(rows=64, seed=0):
    x = np.random.default_rng(seed).random((rows, 2), dtype="float32")
    return {"x": x, "y": x.sum(1, keepdims=True) + 1}


def test_a_training_with_validation(exe, tmp_path, capsys):
    x, y, loss = network()
    exe.run(static.default_startup_program())
    data = from_table(table(), [x, y], batch_size=8, shuffle=True)
    seen = []
    trainer = package.Trainer(
        epochs=40,
        watch={"loss": loss},
        metrics={"loss": loss},
        validation_data=from_table(table(seed=1), [x, y], batch_size=16),
        goal=("loss", "min"),
        min_delta=1e-9,
        early_stop=3,
        scalars=tmp_path / "scalars",
        scalars_every=10,
        callback=lambda event: seen.append(event),
    )
    done = trainer.run(exe, data)
    assert done.step == 8 * done.epoch and done.rows == 8 * done.step
    assert done.best < 1e-2 and done.validated["loss"] == pytest.approx(done.best, rel=2)
    kinds = {event["kind"] for event in seen}
    assert kinds == {"step", "epoch", "validated"}
    steps = [event["loss"] for event in seen if event["kind"] == "step"]
    assert len(steps) == done.step and steps[-1] < 0.01 * steps[0]
    with open(tmp_path / "scalars" / "scalars.csv") as file:
        rows = list(csv.DictReader(file))
    assert rows and "loss" in ",".join(rows[0])
    assert "loss" in capsys.readouterr().out


def test_a_callback_stops_and_its_exception_passes(exe, raises):
    x, y, loss = network()
    exe.run(static.default_startup_program())

    def batches():
        while True:
            yield {name: value[:8] for name, value in table().items()}

    stop = package.Trainer(callback=lambda event: event["step"] >= 5, progress=False)
    done = stop.run(exe, batches)
    assert (done.step, done.ended) == (5, "Callback")

    def broken(event):
        raise KeyError("broken")

    failing = package.Trainer(callback=broken, progress=False)
    raises(KeyError, ["broken"], lambda: failing.run(exe, batches))


def weights():
    return static.default_main_program().state_dict("param")["fc_0.w_0"]


def test_a_training_resumes_with_the_same_bits(exe, tmp_path):
    x, y, loss = network()
    data = from_table(table(), [x, y], batch_size=8, shuffle=True)
    startup = static.default_startup_program()

    def train(folder, **settings):
        exe.run(startup)
        trainer = package.Trainer(checkpoints=folder, progress=False, **settings)
        return trainer.run(exe, data), weights()

    whole, expected = train(tmp_path / "whole", epochs=4)
    part, _ = train(tmp_path / "parts", steps=13)
    assert (whole.step, part.step) == (32, 13)
    rest, found = train(tmp_path / "parts", epochs=4)
    assert (rest.resumed_step, rest.step) == (13, 32)
    assert np.array_equal(found, expected)


def test_wrong_settings(exe, raises):
    x, y, loss = network()
    data = from_table(table(), [x, y], batch_size=8)
    trainer = package.Trainer(progress=False)
    raises(ValueError, ["startup program"], lambda: trainer.run(exe, data))
    raises(TypeError, ["executor"], lambda: trainer.run(None, data))
    raises(TypeError, ["data", "42"], lambda: trainer.run(exe, 42))
    raises(ValueError, ["epochs", "0"], lambda: package.Trainer(epochs=0))
    raises(ValueError, ["goal", "'min' or 'max'"], lambda: package.Trainer(goal="loss"))
    raises(ValueError, ["belong together"], lambda: package.Trainer(metrics={"loss": loss}))
    exe.run(static.default_startup_program())
    unknown = package.Trainer(watch={"loss": "lost"}, progress=False)
    raises(ValueError, ["lost"], lambda: unknown.run(exe, data))
    goal = package.Trainer(
        metrics={"loss": loss}, validation_data=data, goal=("los", "min"), progress=False
    )
    raises(RuntimeError, ["in use"], lambda: goal.run(exe, data))
    with static.program_guard(static.Program(), static.Program()):
        static.nn.fc(static.data("x", [None, 2]), 1)
        raises(ValueError, ["not written for a job", "fleet.init"], lambda: trainer.run(exe, data))


def test_the_script_of_the_page(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "python.md"
    script = page.read_text().split("```python\n# trainer.py\n")[1].split("```")[0]
    (tmp_path / "trainer.py").write_text(script)
    for expected in ["20 epochs, best loss", "20 epochs"]:
        call = [sys.executable, "trainer.py"]
        ran = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert ran.returncode == 0 and expected in ran.stdout, ran.stdout + ran.stderr


WORKER = """
import numpy as np
import fleet as package
from fleet import static
from fleet.distributed import fleet
from fleet.io import from_table

collective = {collective}
fleet.init(is_collective=collective)
ids, y = static.data("ids", [None, 3], "int64"), static.data("y", [None, 1])
if collective:
    rows = static.nn.embedding(ids, [50, 4])
else:
    rows = static.nn.sparse_embedding(ids, [50, 4])
x = package.reshape(rows, [-1, 12])
click = package.nn.functional.sigmoid(static.nn.fc(x, 1))
loss = package.mean(package.nn.functional.log_loss(click, y))
strategy = fleet.DistributedStrategy()
if not collective:
    strategy.a_sync = True
fleet.distributed_optimizer(package.optimizer.Adam(0.05), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = static.Executor(threads=1)
    exe.run(static.default_startup_program())
    if not collective:
        fleet.init_worker()
    numbers = np.random.default_rng(fleet.worker_index()).integers(0, 50, (256, 3))
    columns = {{"ids": numbers, "y": (numbers.sum(1, keepdims=True) > 75).astype("float32")}}
    data = from_table(columns, [ids, y], batch_size=32, shuffle=True)
    check = from_table(columns, [ids, y], batch_size=64)
    trainer = package.Trainer(
        epochs=20, watch={{"loss": loss}}, validation_data=check, validate_every=40,
        metrics={{"AUC": ("auc", click, y)}}, goal=("AUC", "max"),
    )
    done = trainer.run(exe, data)
    print("steps", done.step, "AUC", done.validated["AUC"], flush=True)
    assert done.step == 160 and done.validated["AUC"] > 0.9
    fleet.stop_worker()
"""


@pytest.mark.parametrize("collective", [True, False], ids=["ranks", "servers"])
def test_jobs_of_two_workers(tmp_path, collective):
    (tmp_path / "train.py").write_text(WORKER.format(collective=collective))
    fleetrun = os.path.join(sysconfig.get_path("scripts"), "fleetrun")
    kind = ["--nproc_per_node=2"] if collective else ["--server_num=1", "--worker_num=2"]
    call = [sys.executable, fleetrun, *kind, "train.py"]
    ran = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    logs = "".join(path.read_text() for path in sorted((tmp_path / "log").glob("*log*")))
    assert ran.returncode == 0, ran.stdout + ran.stderr + logs
    assert (ran.stdout + logs).count("steps 160") >= 2
