"""The blocks of docs/python.md run as they are, one after another in a folder, and pass
`mypy --strict`."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    for block in BLOCKS:
        named = re.match(r"# (\w+\.py)\n", block)
        if named:
            (folder / named[1]).write_text(block)
    return folder


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_a_block_runs(folder, index):
    script = folder / f"block_{index}.py"
    script.write_text(BLOCKS[index])
    call = [sys.executable, str(script)]
    # Pipe commands start `python`: this interpreter.
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    ran = subprocess.run(
        call,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        input="",
        env={**os.environ, "PATH": path},
    )
    assert ran.returncode == 0, ran.stderr
    is_silent = "Reader()" in BLOCKS[index] or "class Net" in BLOCKS[index]
    assert ran.stdout or is_silent


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_a_block_passes_mypy(folder, index):
    script = folder / f"typed_{index}.py"
    script.write_text(BLOCKS[index])
    options = ["--strict", "--cache-dir", str(folder / "cache")]
    call = [sys.executable, "-m", "mypy", *options, str(script)]
    ran = subprocess.run(call, capture_output=True, text=True, cwd=folder, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
