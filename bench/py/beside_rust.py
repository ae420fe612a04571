"""Used by the scripts of this folder: options, the result line, and the same workload in Rust."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

# The batches of click logs that the peers use.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))


def options(rounds):
    """Returns the number of threads and of rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--child", action="store_true", help="print the result of one round")
    return parser.parse_args()


def rust(name, args):
    """Returns the median of a benchmark of the program in FLEET_BENCH."""
    program = os.environ.get("FLEET_BENCH")
    if program is None:
        raise SystemExit("FLEET_BENCH: expected the path of fleet-bench; use cargo xtask bench")
    return median([program, name, "--threads", str(args.threads)])


def python(args):
    """Returns the result of this script's `--child`, in a process of its own."""
    return median([sys.executable, *sys.argv[:1], "--child", "--threads", str(args.threads)])


def median(command):
    """Returns the median that a command prints."""
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])["median"]


def show(unit, values, args):
    """Prints the line that the runner reads."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    line = {"bench": Path(sys.argv[0]).stem, "unit": unit, "median": statistics.median(values)}
    line.update(min=min(values), max=max(values), runs=len(values), threads=args.threads)
    print(json.dumps({**line, "peak_rss_mb": round(peak, 1)}))
