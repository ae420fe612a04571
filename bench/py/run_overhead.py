"""Time of `exe.run` with 3 feeds and 1 fetch beyond that of `Session::run`, in microseconds.

The program adds three inputs of 8 numbers, so that almost all of the time is that of the call.
"""

import statistics
import time

import beside_rust

CALLS = 20_000
WARMUP = 2_000

args = beside_rust.options(rounds=10)
if args.child:
    import numpy

    import fleet

    names = ["a", "b", "c"]
    a, b, c = [fleet.static.data(name, [None, 8]) for name in names]
    total = a + b + c
    program = fleet.static.default_main_program()
    exe = fleet.static.Executor(threads=1)
    feed = {name: numpy.ones((1, 8), "float32") for name in names}
    times = []
    for _ in range(WARMUP + CALLS):
        start = time.perf_counter()
        exe.run(program, feed=feed, fetch_list=[total])
        times.append((time.perf_counter() - start) * 1e6)
    beside_rust.show("us", [statistics.median(times[WARMUP:])], args)
else:
    pairs = [
        (beside_rust.python(args), beside_rust.rust("py/run_overhead", args))
        for _ in range(args.rounds)
    ]
    beside_rust.show("us beyond Rust", [ours - rust for ours, rust in pairs], args)
