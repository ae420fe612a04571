"""Wide & deep on a click log, read by commands: document 002, lines 2937 to 3110 (training),
3333 to 3346 (a stream of hours), 3382 to 3411 (metrics) and 3730 to 3774 (inference)."""

import os
import sys

import numpy as np
import paddle
import paddle.distributed.fleet as fleet
from paddle.distributed.fleet.utils.ps_util import DistributedInfer

paddle.enable_static()
here = os.path.dirname(os.path.abspath(__file__))
SLOTS = ["C1", "C2", "C3", "C4"]


class WideDeep:
    """Four words and three numbers."""

    def net(self, is_train):
        dense = paddle.static.data("dense_input", [None, 3])
        ids = [paddle.static.data(name, [None, 1], "int64") for name in SLOTS]
        label = paddle.static.data("label", [None, 1], "int64")
        self.inputs = [dense, *ids, label]
        self.loader = paddle.io.DataLoader.from_generator(
            feed_list=self.inputs, capacity=8, iterable=False
        )
        attr = paddle.ParamAttr(
            name="embedding", initializer=paddle.nn.initializer.Uniform(-0.1, 0.1)
        )
        rows = [
            paddle.fluid.layers.embedding(i, [1001, 4], is_sparse=True, param_attr=attr)
            for i in ids
        ]
        hidden = paddle.static.nn.fc(paddle.concat([*rows, dense], axis=1), 8, activation="relu")
        predict = paddle.static.nn.fc(hidden, 2, activation="softmax")
        self.cost = paddle.mean(paddle.fluid.layers.cross_entropy(predict, label))
        self.auc, _, (_, _, self.stat_pos, self.stat_neg) = paddle.static.auc(
            input=predict, label=label, num_thresholds=2**12, slide_steps=20
        )
        self.right = paddle.static.create_global_var(
            name="right_cnt", persistable=True, dtype="float32", shape=[1], value=0
        )
        self.total = paddle.static.create_global_var(
            name="total_cnt", persistable=True, dtype="float32", shape=[1], value=0
        )
        count = paddle.sum(paddle.full(shape=[paddle.shape(label)[0], 1], fill_value=1.0))
        accuracy = paddle.static.accuracy(input=predict, label=label)
        paddle.assign(self.right + count * accuracy, self.right)
        paddle.assign(self.total + count, self.total)


def clear_metric_state(model):
    """Sets the counters to zero."""
    for variable in [model.stat_pos, model.stat_neg, model.right, model.total]:
        tensor = paddle.static.global_scope().find_var(variable.name).get_tensor()
        tensor.set(np.zeros(tensor._get_dims(), variable.dtype), paddle.CPUPlace())


def write_log(path, seed, lines=200):
    """Writes a log whose label follows from the first word."""
    rng = np.random.default_rng(seed)
    with open(path, "w") as file:
        for _ in range(lines):
            label = rng.integers(2)
            words = [f"w{label}", *(f"w{rng.integers(9)}" for _ in range(3))]
            fields = [label, *rng.integers(20, size=3), *words]
            file.write("\t".join(map(str, fields)) + "\n")
    return path


def dataset_of(kind, model, files):
    """A data set of files, which reader.py parses."""
    dataset = getattr(paddle.distributed, kind)()
    dataset.init(
        use_var=model.inputs,
        pipe_command=f"python {here}/reader.py",
        batch_size=16,
        thread_num=1,
    )
    dataset.set_filelist(files)
    return dataset


def samples(path):
    """A generator of samples for the loader."""
    sys.path.insert(0, here)
    from reader import ClickReader

    def read():
        with open(path) as file:
            for line in file:
                yield ClickReader().line_process(line)

    return read


fleet.init()
model = WideDeep()
model.net(is_train=True)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
optimizer = fleet.distributed_optimizer(paddle.optimizer.Adam(0.01), strategy)
optimizer.minimize(model.cost)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()

exe = paddle.static.Executor(paddle.CPUPlace(), threads=1)
exe.run(paddle.static.default_startup_program())
fleet.init_worker()
rank = fleet.worker_index()
main = paddle.static.default_main_program()

# Hours of two days, as they arrive.
for day in range(2):
    for hour in range(2):
        part = write_log(f"part-{rank}-{day}-{hour}", [rank, day, hour])
        dataset = dataset_of("QueueDataset", model, [part])
        exe.train_from_dataset(
            program=main,
            dataset=dataset,
            fetch_list=[model.auc],
            fetch_info=["avg_auc"],
            print_period=10,
        )
        fleet.barrier_worker()
        if fleet.is_first_worker() and fleet.server_num():
            mode = 1 if hour == 0 else 2
            fleet.save_persistables(exe, "output/epoch_{}".format(day), mode)

# All of it from memory, with metrics over all workers.
clear_metric_state(model)
parts = [f"part-{rank}-{day}-{hour}" for day in range(2) for hour in range(2)]
dataset = dataset_of("InMemoryDataset", model, parts)
dataset.load_into_memory()
dataset.global_shuffle(fleet)
assert dataset.get_memory_data_size(fleet) == 800 * fleet.worker_num()
for epoch in range(2):
    exe.train_from_dataset(main, dataset)
dataset.release_memory()
seen = float(fleet.metrics.sum(model.total))
auc = fleet.metrics.auc(model.stat_pos.name, model.stat_neg.name)
acc = fleet.metrics.acc(model.right, model.total)
print("Global Metrics ---> samples: {} auc: {} acc: {}".format(seen, auc, acc))
assert seen == 1600 * fleet.worker_num() and auc > 0.9 and acc > 0.8

# A pass over the loader, with the tables of the job.
test_main, test_startup = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main_program=test_main, startup_program=test_startup):
    with paddle.utils.unique_name.guard():
        tested = WideDeep()
        tested.net(is_train=False)
exe.run(test_startup)
infer = DistributedInfer(main_program=test_main, startup_program=test_startup)
program = infer.get_dist_infer_program()
reader = tested.loader.set_sample_generator(
    samples(parts[0]), batch_size=16, drop_last=True, places=paddle.CPUPlace()
)
reader.start()
losses = []
try:
    while True:
        losses.append(np.mean(exe.run(program=program, fetch_list=[tested.cost.name])))
except paddle.fluid.core.EOFException:
    reader.reset()
print("TEST ---> batches: {} loss: {}".format(len(losses), np.mean(losses)))
assert len(losses) == 12 and np.mean(losses) < 0.5
if fleet.is_first_worker():
    print("wide_deep: done")
fleet.stop_worker()
