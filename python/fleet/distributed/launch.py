"""``python -m fleet.distributed.launch``: the command ``fleetrun``."""

from fleet._commands import fleetrun

if __name__ == "__main__":
    fleetrun()
