"""The type stubs: they follow from the package, and examples pass `mypy --strict`."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1]


def test_stubs_are_current(tmp_path):
    stubs = tmp_path / "stubs"
    subprocess.run([sys.executable, FOLDER / "tools" / "stubs.py", stubs], check=True, timeout=60)
    new = {path.relative_to(stubs): path.read_text() for path in stubs.rglob("*.pyi")}
    kept = {path.relative_to(FOLDER): path.read_text() for path in FOLDER.rglob("*.pyi")
            if "target" not in path.parts}
    changed = sorted(str(name) for name in {*new, *kept} if new.get(name) != kept.get(name))
    assert not changed, "run: target/python/bin/python python/tools/stubs.py"


def mypy(folder, *paths):
    call = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder / "cache", *paths]
    return subprocess.run(call, capture_output=True, text=True, cwd=folder, timeout=300)


WRONG = """
from fleet import static
from fleet.distributed import fleet
x = static.data("x", [None, 3])
static.nn.fc(x, size="3")
static.nn.fc(x, 3, activatio="relu")
fleet.DistributedStrategy().ammp = True
"""


def test_examples_pass_mypy(tmp_path):
    examples = sorted((FOLDER / "examples").glob("*.py"))
    assert examples
    ran = mypy(tmp_path, *examples)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (tmp_path / "wrong.py").write_text(WRONG)
    errors = mypy(tmp_path, tmp_path / "wrong.py").stdout
    for part in ["wrong.py:5", "wrong.py:6", "activation", "wrong.py:7", "maybe \"amp\""]:
        assert part in errors, errors
