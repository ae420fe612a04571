"""InMemoryDataset in Paddle: loading click logs from MultiSlot text, shuffling them, making batches.

`--part load`: MB of text a second; `shuffle`: records a second; `batches`: shuffled records a second through
a program that reads one input. Paddle 2.6.2 is the last that ships with its parameter server, whose
dataset this is; newer ones have it too.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

args = common.options(batch_size=2048, steps=5, warmup=1)

import paddle

FILES, LINES = 4, 50_000
UNITS = {"load": "MB/s", "shuffle": "records/s", "batches": "records/s"}


def measure(files, size):
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        dense = paddle.static.data("dense_input", [None, 13], "float32")
        ids = [paddle.static.data(f"C{slot + 1}", [None, 1], "int64", lod_level=1)
               for slot in range(common.SLOT_COUNT)]
        label = paddle.static.data("label", [None, 1], "int64")
        paddle.mean(dense)
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(startup)

    # A new one each time: Paddle 2.6.2 crashes when it loads into one that was released.
    def empty():
        dataset = paddle.distributed.InMemoryDataset()
        dataset.init(batch_size=args.batch_size, thread_num=args.threads, pipe_command="cat",
                     use_var=[dense, *ids, label])
        dataset.set_filelist(files)
        return dataset

    def rate(work, amount):
        start = time.perf_counter()
        work()
        return amount / (time.perf_counter() - start)

    def load():
        return rate(empty().load_into_memory, size / 1e6)

    def shuffle():
        dataset = empty()
        dataset.load_into_memory()
        return rate(dataset.local_shuffle, FILES * LINES)

    def batches():
        dataset = empty()
        dataset.load_into_memory()
        dataset.local_shuffle()
        return rate(lambda: exe.infer_from_dataset(main, dataset), FILES * LINES)

    step = {"load": load, "shuffle": shuffle, "batches": batches}[args.part]
    for _ in range(args.warmup):
        step()
    return [step() for _ in range(args.steps)]


folder = tempfile.mkdtemp(prefix="fleet-peer-")
try:
    files = common.click_files(folder, FILES, LINES, "multislot")
    os.chdir(folder)  # a pass leaves a description of itself
    rates = measure(files, sum(os.path.getsize(path) for path in files))
finally:
    shutil.rmtree(folder)
print(json.dumps(common.line(f"data/{args.part}", UNITS[args.part], rates, args)))
