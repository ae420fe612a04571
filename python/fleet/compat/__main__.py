"""``python -m fleet.compat script.py``: runs a script that imports ``paddle``."""

import os
import runpy
import shutil
import sys

from fleet import compat

USAGE = """\
usage: python -m fleet.compat SCRIPT [ARGUMENTS]
       python -m fleet.compat -m MODULE [ARGUMENTS]
       python -m fleet.compat --path

Runs a script that is written for Paddle: `import paddle` is the package `fleet`.
--path prints a folder. With it in PYTHONPATH, every process of Python may import `paddle`."""


def main():
    args = sys.argv[1:]
    if args[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return
    if args == ["--path"]:
        print(compat.path())
        return
    is_module = args[:1] == ["-m"]
    args = args[1:] if is_module else args
    if not args or args[0].startswith("-"):
        print(f"expected a script, got {' '.join(args) or 'nothing'}\n{USAGE}", file=sys.stderr)
        sys.exit(2)
    if not is_module and not os.path.exists(args[0]):
        print(f"cannot find the script '{args[0]}'", file=sys.stderr)
        sys.exit(2)
    compat.install()
    _pass_on()
    sys.excepthook = _show
    sys.argv = args
    if is_module:
        runpy.run_module(args[0], run_name="__main__", alter_sys=True)
        return
    if not getattr(sys.flags, "safe_path", False):
        # Python has put the current folder there, since it runs a module.
        sys.path[0] = os.path.dirname(os.path.realpath(args[0]))
    runpy.run_path(args[0], run_name="__main__")


def _show(kind, value, trace):
    """Prints an exception without the frames that have started the script."""
    while trace is not None and _is_internal(trace.tb_frame):
        trace = trace.tb_next
    sys.__excepthook__(kind, value.with_traceback(trace), trace)


def _is_internal(frame):
    return frame.f_code.co_filename == __file__ or frame.f_globals.get("__name__") == "runpy"


def _pass_on():
    """Lets commands that the script starts, such as `python reader.py`, import `paddle` too, with
    this interpreter."""
    _prepend("PYTHONPATH", compat.path())
    interpreters = os.path.dirname(sys.executable)
    found = shutil.which("python")
    if not found or os.path.dirname(found) != interpreters:
        _prepend("PATH", interpreters)


def _prepend(variable, folder):
    known = os.environ.get(variable)
    if known is None or folder not in known.split(os.pathsep):
        os.environ[variable] = os.pathsep.join(filter(None, [folder, known]))


if __name__ == "__main__":
    main()
