"""Runs scripts of tests as jobs."""

import os
import subprocess
import sys
import sysconfig

FLEETRUN = os.path.join(sysconfig.get_path("scripts"), "fleetrun")


class Jobs:
    """Runs scripts in a folder, alone or under `fleetrun`."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def alone(self, *args, env=None):
        return self._run([sys.executable, *args], env)

    def servers(self, *args, servers=1, workers=2, env=None):
        """Runs a job with parameter servers."""
        counts = [f"--server_num={servers}", f"--worker_num={workers}"]
        return self._run([FLEETRUN, *counts, *args], env)

    def _run(self, call, env):
        env = {**os.environ, **(env or {})}
        call = [str(part) for part in call]
        return subprocess.run(
            call, capture_output=True, text=True, cwd=self.folder, timeout=100, env=env
        )

    def logs(self):
        logs = sorted((self.folder / "log").glob("*log*"))
        return "".join(f"== {log.name}\n{log.read_text()}" for log in logs)

    def succeeds(self, ran):
        assert ran.returncode == 0, ran.stdout + ran.stderr + self.logs()
        return ran
