"""Speed of wide & deep trained by `exe.run`, divided by that of the same program in Rust.

The workload is that of `train/wide_deep_sgd`. Batches are arrays of NumPy, which every step copies.
"""

import statistics
import time

import beside_rust

BATCH = 2048
STEPS = 100
WARMUP = 20


def network(static):
    """Returns the loss. Its table has a rule of its own."""
    import fleet

    dense = static.data("dense_input", [None, 13])
    ids = static.data("sparse_input", [None, 26], "int64")
    label = static.data("label", [None, 1])
    table = fleet.ParamAttr(name="table")
    rows = static.nn.embedding(ids, [1_000_000, 16], is_sparse=True, param_attr=table)
    hidden = fleet.concat([fleet.reshape(rows, [-1, 26 * 16]), dense], axis=1)
    for _ in range(3):
        hidden = static.nn.fc(hidden, 400, activation="relu")
    logit = static.nn.fc(dense, 1) + static.nn.fc(hidden, 1)
    loss = fleet.nn.functional.binary_cross_entropy_with_logits(logit, label)
    return fleet.mean(loss)


def train(args):
    """Returns the rate of each step, in samples/s."""
    import common
    import fleet
    from fleet import static

    loss = network(static)
    pairs = static.append_backward(loss)
    own = [pair for pair in pairs if pair[0].name == "table"]
    rest = [pair for pair in pairs if pair[0].name != "table"]
    fleet.optimizer.SGD(0.01).apply_gradients(own)
    fleet.optimizer.Adam(1e-3).apply_gradients(rest)
    exe = static.Executor(threads=args.threads)
    exe.run(static.default_startup_program())
    program = static.default_main_program()
    batches = [
        {"dense_input": dense, "sparse_input": ids, "label": labels}
        for dense, ids, labels in common.click_batches(16, BATCH)
    ]
    rates = []
    for step in range(WARMUP + STEPS):
        start = time.perf_counter()
        exe.run(program, feed=batches[step % len(batches)])
        rates.append(BATCH / (time.perf_counter() - start))
    return rates[WARMUP:]


args = beside_rust.options(rounds=10)
if args.child:
    beside_rust.show("samples/s", [statistics.median(train(args))], args)
else:
    ratios = []
    for _ in range(args.rounds):
        ours = beside_rust.python(args)
        ratios.append(ours / beside_rust.rust("train/wide_deep_sgd", args))
    beside_rust.show("of Rust's speed", ratios, args)
