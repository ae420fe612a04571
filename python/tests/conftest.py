"""Every test has programs and a scope of its own."""

import subprocess
import sys

import pytest

import fleet
from fleet import static
from fleet.utils import unique_name


@pytest.fixture(autouse=True)
def fresh():
    with static.program_guard(static.Program(), static.Program()):
        with static.scope_guard(static.Scope()), unique_name.guard():
            yield


@pytest.fixture
def exe():
    executor = static.Executor(threads=1)
    yield executor
    executor.close()


@pytest.fixture
def command():
    """Runs the command `fleet`, which is Rust code, and returns what it prints."""

    def run(*args):
        code = "from fleet._commands import fleet; fleet()"
        call = [sys.executable, "-c", code, *map(str, args)]
        ran = subprocess.run(call, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


@pytest.fixture
def raises():
    """Checks the exception of a call: its type, and parts of its text."""

    def check(kind, parts, call):
        with pytest.raises(kind) as caught:
            call()
        for part in parts:
            assert part in str(caught.value)
        return str(caught.value)

    return check


assert fleet.__version__
