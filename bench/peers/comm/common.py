"""What the peers of the benchmarks `comm/...` share: the name, the loop, the line."""

import argparse
import json
import resource
import time


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True, help="comm/allreduce_2x1MB")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--warmup", type=int, default=3)
    args = parser.parse_args()
    ranks, size = args.bench.split("allreduce_")[1].split("x")
    args.ranks = int(ranks)
    args.bytes = int(size[:-2]) << {"KB": 10, "MB": 20}[size[-2:]]
    args.calls = max((4 << 20) // args.bytes, 1)
    args.steps = args.steps or min(max((512 << 20) // (args.bytes * args.calls), 8), 100)
    return args


def measure(args, rank, barrier, reduce):
    seconds = []
    for step in range(args.warmup + args.steps):
        barrier()
        begin = time.perf_counter()
        for _ in range(args.calls):
            reduce()
        if step >= args.warmup:
            seconds.append((time.perf_counter() - begin) / args.calls)
    barrier()
    if rank == 0:
        seconds.sort()
        rate = [args.bytes / 1e9 / one for one in seconds]
        print(json.dumps({
            "bench": args.bench, "unit": "GB/s", "median": round(rate[len(rate) // 2], 4),
            "min": round(rate[-1], 4), "max": round(rate[0], 4),
            "us": round(seconds[len(seconds) // 2] * 1e6, 2), "runs": len(rate), "ranks": args.ranks,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }), flush=True)
