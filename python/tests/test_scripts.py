"""Scripts that are written for Paddle, with the calls of the documents, under this package."""

import os
import pathlib
import subprocess
import sys
import sysconfig

import pytest

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
FLEETRUN = os.path.join(sysconfig.get_path("scripts"), "fleetrun")

ALONE = [sys.executable, "-m", "fleet.compat"]
TWO = [FLEETRUN, "--compat=paddle", "--nproc_per_node=2"]
SERVERS = [FLEETRUN, "--compat=paddle", "--server_num=1", "--worker_num=2"]


def run(call, script, folder, *args):
    call = [*call, str(SCRIPTS / script), *args]
    ran = subprocess.run(call, capture_output=True, text=True, cwd=folder, timeout=300)
    logs = [path.read_text() for path in sorted((folder / "log").glob("*log.*"))]
    output = "\n".join([ran.stdout, ran.stderr, *logs])
    assert ran.returncode == 0, output[-6000:]
    assert f"{script.removesuffix('.py')}: done" in output, output[-6000:]
    return output


@pytest.mark.parametrize("call", [ALONE, TWO], ids=["alone", "two"])
@pytest.mark.parametrize("script", ["strategies.py", "fluid_style.py", "metrics.py", "resnet.py"])
def test_collective(tmp_path, script, call):
    run(call, script, tmp_path)


def test_layers(tmp_path):
    assert "programs run on the CPU" in run(ALONE, "layers.py", tmp_path)


@pytest.mark.parametrize(
    "call, mode",
    [(ALONE, "async"), (SERVERS, "async"), (SERVERS, "geo"), (SERVERS, "sync")],
    ids=["alone", "async", "geo", "sync"],
)
def test_parameter_servers(tmp_path, call, mode):
    run(call, "servers.py", tmp_path, mode)


@pytest.mark.parametrize("call", [ALONE, SERVERS], ids=["alone", "servers"])
@pytest.mark.parametrize("script", ["wide_deep.py", "word2vec.py"])
def test_data_on_servers(tmp_path, script, call):
    run(call, script, tmp_path)


@pytest.mark.parametrize(
    "call, args",
    [
        (SERVERS, ["pserver", "before"]),
        (SERVERS, ["pserver", "after"]),
        (SERVERS, ["pserver", "never"]),
        (TWO, ["nccl2", "after"]),
    ],
    ids=["before", "after", "never", "nccl2"],
)
def test_a_transpiled_job(tmp_path, call, args):
    run(call, "transpiler.py", tmp_path, *args)
