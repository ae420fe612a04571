"""hnswlib on vectors of the same law as `rec/nearest_*`: queries a second of one thread.

Products are turned into distances by one number more, as Fleet does. The result is the speed at the
smallest width of a search that finds the wanted share of the ten best items.
"""

import argparse
import json
import sys
import time

import hnswlib
import numpy

DIM, CENTRES, SPREAD, QUERIES, CHECKED, COUNT = 32, 1000, 0.7, 2000, 200, 10
LINKS, CANDIDATES = 16, 128
WIDTHS = [16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768]

parser = argparse.ArgumentParser()
parser.add_argument("--items", type=int, required=True)
parser.add_argument("--recall", type=float, default=0.96)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--warmup", type=int, default=1)
args = parser.parse_args()

centres = numpy.random.default_rng(1).standard_normal((CENTRES, DIM), dtype=numpy.float32)


def vectors(count, seed):
    random = numpy.random.default_rng(seed)
    noise = SPREAD * random.standard_normal((count, DIM), dtype=numpy.float32)
    lengths = (random.random(count, dtype=numpy.float32) + 0.2)[:, None]
    return lengths * (centres[random.integers(CENTRES, size=count)] + noise)


items, queries = vectors(args.items, 2), vectors(QUERIES, 3)
squares = (items * items).sum(1)
rest = numpy.sqrt(squares.max() - squares)[:, None]
points = numpy.hstack([items, rest])
asked = numpy.hstack([queries, numpy.zeros((QUERIES, 1), dtype=numpy.float32)])


def build(threads):
    index = hnswlib.Index(space="l2", dim=DIM + 1)
    index.init_index(len(items), M=LINKS, ef_construction=CANDIDATES, random_seed=1)
    begin = time.perf_counter()
    index.add_items(points, num_threads=threads)
    return index, time.perf_counter() - begin


_, alone = build(1)
index, built = build(args.threads)
index.set_num_threads(1)
best = numpy.argpartition(-(queries[:CHECKED] @ items.T), COUNT, axis=1)[:, :COUNT]
print(f"{len(items)} items: built in {built:.1f} s by {args.threads} threads, {alone:.1f} s by one",
      file=sys.stderr)
result = None
for width in WIDTHS:
    index.set_ef(width)
    found, _ = index.knn_query(asked[:CHECKED], COUNT)
    recall = sum(len(set(a) & set(b)) for a, b in zip(best, found)) / (CHECKED * COUNT)
    rates = []
    for step in range(args.warmup + args.steps):
        begin = time.perf_counter()
        index.knn_query(asked, COUNT)
        if step >= args.warmup:
            rates.append(QUERIES / (time.perf_counter() - begin))
    rates.sort()
    print(f"width {width}: recall@{COUNT} {recall:.4f}, {rates[len(rates) // 2]:.0f} queries/s",
          file=sys.stderr)
    result = rates
    if recall >= args.recall:
        break
print(json.dumps({
    "bench": f"rec/nearest_{args.items}", "unit": "queries/s", "median": result[len(result) // 2],
    "min": result[0], "max": result[-1], "runs": len(result), "threads": args.threads,
}))
