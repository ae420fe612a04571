"""What the peers' scripts share: options, the click-log batches, the timing loop, the result line.

Needs NumPy only. Nothing here is timed except the `step` that a script hands to `measure`.
"""

import argparse
import json
import os
import resource
import statistics
import time

import numpy

# The click-log shape of `fleet_data::synth::CtrConfig::criteo_like`.
SLOT_COUNT = 26
DENSE_COUNT = 13
ROW_COUNT = 1_000_000
SMALLEST_SLOT = 4
ID_EXPONENT = 1.1


def options(batch_size, steps, warmup):
    """Parses the options that every script takes; call it before importing a framework."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=steps, help="timed steps")
    parser.add_argument("--warmup", type=int, default=warmup, help="steps before timing starts")
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--optimizer", choices=["sgd", "adagrad"], default="sgd",
                        help="rule of the embedding table (wide & deep only)")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None,
                        help="torch.compile on or off instead of the faster of the two")
    parser.add_argument("--bf16", action="store_true",
                        help="mixed precision in bfloat16 (BERT only)")
    parser.add_argument("--ranks", type=int, default=2, help="processes (data parallel only)")
    parser.add_argument("--model", choices=["mlp", "resnet50"], default="mlp",
                        help="network (data parallel only)")
    parser.add_argument("--weak-scaling", action="store_true",
                        help="the speed of a rank among others over that of one alone")
    parser.add_argument("--part", choices=["load", "shuffle", "batches"], default="load",
                        help="what is timed (datasets only)")
    args = parser.parse_args()
    # Some libraries read these once, when they are loaded.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    return args


def cardinalities(slots=SLOT_COUNT, rows=ROW_COUNT, smallest=SMALLEST_SLOT):
    """Slot sizes in geometric progression that add up to `rows`."""
    low, high = 1.0, 10.0
    for _ in range(100):
        ratio = (low + high) / 2
        if sum(smallest * ratio ** slot for slot in range(slots)) < rows:
            low = ratio
        else:
            high = ratio
    sizes = [int(smallest * low ** slot) for slot in range(slots)]
    sizes[-1] += rows - sum(sizes)
    return sizes


def click_batches(count, batch_size, seed=1):
    """`count` batches of (dense [B,13] f32, ids [B,26] i64 into one table, labels [B,1] f32).

    Ids follow a power law inside each slot: rank r has the mass of x**-ID_EXPONENT between r+1 and
    r+2. A step that is coprime to the slot's size scatters the ranks over the slot's rows, so that
    hot rows are no neighbours in memory.
    """
    rng = numpy.random.default_rng(seed)
    power = 1.0 - ID_EXPONENT
    batches = []
    for _ in range(count):
        columns, offset = [], 0
        for size in cardinalities():
            unit = rng.random(batch_size)
            edge = (size + 1.0) ** power
            rank = (1.0 + unit * (edge - 1.0)) ** (1.0 / power) - 1.0
            rank = numpy.minimum(rank.astype(numpy.int64), size - 1)
            columns.append(offset + (rank * coprime_step(size)) % size)
            offset += size
        dense = rng.random((batch_size, DENSE_COUNT), dtype=numpy.float32)
        labels = (rng.random((batch_size, 1)) < 0.25).astype(numpy.float32)
        batches.append((dense, numpy.stack(columns, axis=1), labels))
    return batches


def click_files(folder, files, lines, form):
    """Writes click logs as `fleet data make ctr` does, as MultiSlot text or CSV; gives their paths."""
    paths = []
    for file in range(files):
        dense, ids, labels = click_batches(1, lines, seed=file + 1)[0]
        path = os.path.join(folder, f"part-{file}")
        with open(path, "w") as out:
            if form == "csv":
                names = [f"dense_input_{at}" for at in range(DENSE_COUNT)]
                names += [f"C{slot + 1}" for slot in range(SLOT_COUNT)] + ["label"]
                out.write(",".join(names) + "\n")
            for numbers, row, label in zip(dense.tolist(), ids.tolist(), labels[:, 0].tolist()):
                numbers = [f"{number:.3g}" for number in numbers]
                if form == "csv":
                    out.write(",".join([*numbers, *map(str, row), str(int(label))]) + "\n")
                else:
                    row = " ".join(f"1 {each}" for each in row)
                    out.write(f"13 {' '.join(numbers)} {row} 1 {int(label)}\n")
        paths.append(path)
    return paths


def coprime_step(size):
    """The first number from the golden section of `size` on that shares no factor with it."""
    step = max(1, int(size * 0.6180339887498949))
    while numpy.gcd(step, size) != 1:
        step += 1
    return step


def measure(bench, args, step, batches, quiet=False):
    """Runs `step(batch)` over the batches in turn and prints one JSON line of samples a second."""
    for index in range(args.warmup):
        step(batches[index % len(batches)])
    rates = []
    for index in range(args.steps):
        batch = batches[(args.warmup + index) % len(batches)]
        start = time.perf_counter()
        step(batch)
        rates.append(args.batch_size / (time.perf_counter() - start))
    if quiet:
        return
    print(json.dumps(line(bench, "samples/s", rates, args)))


def line(bench, unit, rates, args):
    """What is printed as JSON."""
    return {
        "bench": bench,
        "unit": unit,
        "median": round(statistics.median(rates), 3),
        "min": round(min(rates), 3),
        "max": round(max(rates), 3),
        "runs": args.steps,
        "threads": args.threads,
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
