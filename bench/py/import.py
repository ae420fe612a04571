"""Time of `import fleet` in a process that has imported numpy, in milliseconds."""

import subprocess
import sys

import beside_rust

CODE = """
import time, numpy
start = time.perf_counter()
import fleet
print((time.perf_counter() - start) * 1e3)
"""

args = beside_rust.options(rounds=21)
times = []
for _ in range(args.rounds):
    ran = subprocess.run([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True, check=True)
    times.append(float(ran.stdout))
beside_rust.show("ms beyond numpy", times, args)
