"""Wide & deep on click logs, alone or with parameter servers:

    fleet data make ctr clicks --rows 800000 --shards 8
    python python/examples/wide_deep.py clicks
    fleetrun --server_num=1 --worker_num=2 python/examples/wide_deep.py clicks

The first file is for the test; the workers share the others. `fleet data make` prints the best
possible AUC.
"""

import glob
import os
import sys
import time

import fleet
from fleet import static
from fleet.distributed import InMemoryDataset
from fleet.distributed import fleet as job

SLOTS = 26
ROWS = 50_000
#: Passes over the files. Further ones learn the ids of single records by heart.
PASSES = 2
#: Records of a step of all workers.
BATCH = 1024
#: A row is in few records of a batch, so its gradient is small.
TABLE_RATE = 6.0
LAYERS_RATE = 2e-3


class Model:
    """The network, its inputs, and what is reported."""

    def __init__(self) -> None:
        dense = static.data("dense_input", [None, 13])
        ids = [static.data(f"C{slot}", [None, 1], "int64") for slot in range(1, SLOTS + 1)]
        label = static.data("label", [None, 1], "int64")
        self.inputs = [dense, *ids, label]

        table = fleet.ParamAttr(name="table")
        rows = [static.nn.sparse_embedding(slot, [ROWS, 16], param_attr=table) for slot in ids]
        rows = [fleet.reshape(row, [-1, 16]) for row in rows]
        deep = fleet.concat([*rows, dense], axis=1)
        for width in (400, 400, 400):
            deep = static.nn.fc(deep, width, activation="relu")
        click = fleet.nn.functional.sigmoid(static.nn.fc(dense, 1) + static.nn.fc(deep, 1))

        cost = fleet.nn.functional.log_loss(click, fleet.cast(label, "float32"))
        self.loss = fleet.mean(cost)
        both = fleet.concat([1.0 - click, click], axis=1)
        _, _, counts = static.auc(both, label)
        self.positive, self.negative = counts[2], counts[3]


def dataset(model: Model, files: list[str]) -> InMemoryDataset:
    """Returns the records of files, in memory."""
    records = InMemoryDataset()
    records.init(batch_size=BATCH // job.worker_num(), thread_num=2, use_var=model.inputs)
    records.set_filelist(files)
    records.load_into_memory()
    return records


def auc(model: Model, exe: static.Executor, program: static.Program, files: list[str]) -> float:
    """Returns the AUC of all workers on files."""
    scope = static.global_scope()
    for counts in (model.positive, model.negative):
        scope[counts.name] = 0 * scope[counts.name]
    exe.infer_from_dataset(program, dataset(model, files))
    return job.metrics.auc(model.positive.name, model.negative.name)


def count(files: list[str]) -> int:
    """Returns the number of records of files."""
    total = 0
    for name in files:
        with open(name, "rb") as file:
            total += sum(1 for _ in file)
    return total


def main(folder: str) -> None:
    files = sorted(glob.glob(os.path.join(folder, "part-*")))
    if len(files) < 2:
        sys.exit(
            f"{folder}: expected two or more files part-*, got {len(files)}\n"
            f"  help: fleet data make ctr {folder} --rows 800000 --shards 8"
        )
    first, *rest = files
    job.init()
    model = Model()
    test = static.default_main_program().clone(for_test=True)
    strategy = job.DistributedStrategy()
    strategy.a_sync = True
    steps = PASSES * count(rest) // BATCH
    # Asynchronous workers compute with parameters that lack the latest updates of the others.
    rate = fleet.optimizer.lr.PolynomialDecay(LAYERS_RATE / job.worker_num(), steps, end_lr=0.0)
    row_rate = fleet.optimizer.lr.PolynomialDecay(TABLE_RATE, steps, end_lr=0.0)
    optimizer = job.distributed_optimizer(
        fleet.optimizer.Adam(rate), strategy, rows=fleet.optimizer.SGD(row_rate)
    )
    optimizer.minimize(model.loss)
    if job.is_server():
        job.init_server()
        job.run_server()
        return

    exe = static.Executor()
    exe.run(static.default_startup_program())
    job.init_worker()
    records = dataset(model, job.util.get_file_shard(rest))
    for number in range(PASSES):
        records.local_shuffle()
        start = time.perf_counter()
        exe.train_from_dataset(
            static.default_main_program(),
            records,
            fetch_list=[model.loss],
            fetch_info=["loss"],
            print_period=200,
        )
        job.barrier_worker()
        speed = count(rest) / (time.perf_counter() - start)
        found = auc(model, exe, test, [first])
        if job.is_first_worker():
            print(f"pass {number}: {speed:.0f} samples/s, AUC {found:.4f}", flush=True)
    job.stop_worker()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: wide_deep.py FOLDER")
    main(sys.argv[1])
