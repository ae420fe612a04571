"""The commands ``fleet`` and ``fleetrun``, which are Rust code in the compiled module."""

import os
import signal
import sys
import sysconfig


def fleet():
    """Inspects, converts and runs programs."""
    from fleet import _fleet

    # Python would only note Ctrl-C until the command ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_fleet.run_fleet(["fleet", *sys.argv[1:]]))


def fleetrun():
    """Starts the processes of a job."""
    from fleet import _fleet

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The launcher starts itself again for its guard and for built-in jobs, and Python scripts with
    # this interpreter, which has the package.
    script = os.path.join(sysconfig.get_path("scripts"), "fleetrun")
    if not os.access(script, os.X_OK):
        script = os.path.abspath(sys.argv[0])
    env = {"PYTHON": sys.executable, **os.environ}
    sys.exit(_fleet.run_fleetrun(sys.argv[1:], list(env.items()), script))
