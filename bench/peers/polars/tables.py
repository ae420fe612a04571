"""Click logs as CSV into polars: MB of text a second, types given."""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

args = common.options(batch_size=1, steps=5, warmup=1)
os.environ["POLARS_MAX_THREADS"] = str(args.threads)

import json

import polars

FILES, LINES = 4, 50_000
FLOATS = {f"dense_input_{at}": polars.Float32 for at in range(common.DENSE_COUNT)}
IDS = {name: polars.Int64 for name in [*(f"C{at + 1}" for at in range(common.SLOT_COUNT)), "label"]}

folder = tempfile.mkdtemp(prefix="fleet-peer-")
try:
    files = common.click_files(folder, FILES, LINES, "csv")
    size = sum(os.path.getsize(path) for path in files)
    rates = []
    for step in range(args.warmup + args.steps):
        start = time.perf_counter()
        table = polars.read_csv(os.path.join(folder, "part-*"), schema={**FLOATS, **IDS})
        seconds = time.perf_counter() - start
        assert table.height == FILES * LINES
        if step >= args.warmup:
            rates.append(size / seconds / 1e6)
finally:
    shutil.rmtree(folder)
print(json.dumps(common.line("data/csv_load", "MB/s", rates, args)))
