"""The listings of the documents, as they are written.

The documents are not part of the repository: these tests are skipped where they are missing. A case
joins listings to a program, with the lines that the documents leave out, and runs it under
``python -m fleet.compat`` or ``fleetrun --compat=paddle``.
"""

import os
import re
import subprocess
import sys
import sysconfig

import pytest

import documents

pytestmark = pytest.mark.skipif(
    documents.folder() is None,
    reason=f"the documents are not in ../shared/documents; {documents.VARIABLE} has their folder",
)

#: Lines that fragments for collective jobs leave out. `finish` trains a network with the strategy.
COLLECTIVE = """
import numpy as np
import paddle
import paddle.fluid as fluid
from paddle.distributed import fleet

paddle.enable_static()

def finish(strategy, optimizer=None):
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()):
        with paddle.static.scope_guard(paddle.static.Scope()), paddle.utils.unique_name.guard():
            x = paddle.static.data("x", [None, 4])
            loss = paddle.mean(paddle.static.nn.fc(x, 3))
            optimizer = optimizer or paddle.optimizer.SGD(0.1)
            optimizer = fleet.distributed_optimizer(optimizer, strategy)
            optimizer.minimize(loss)
            exe = paddle.static.Executor(threads=1)
            exe.run(paddle.static.default_startup_program())
            feed = {"x": np.ones((2, 4), "float32")}
            losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(3)]
            exe.close()
            print("applied", optimizer.applied_strategies(), losses[-1] <= losses[0])

fleet.init(is_collective=True)
"""

#: A network for fragments that have `loss` or `avg_cost`, and a batch for it.
NETWORK = """
x = paddle.static.data("x", [None, 4])
label = paddle.static.data("label", [None, 1])
avg_cost = loss = paddle.mean(paddle.nn.functional.square_error_cost(
    paddle.static.nn.fc(x, 1), label))
feed = {"x": np.ones((2, 4), "float32"), "label": np.ones((2, 1), "float32")}
"""

#: Lines that fragments for parameter servers leave out: the model, the loop, and evaluation.
SERVERS = """
import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.distributed.fleet as fleet
from paddle.distributed.fleet.utils.ps_util import DistributedInfer

paddle.enable_static()
place = paddle.CPUPlace()
exe = paddle.static.Executor(place, threads=1)
SLOTS = ["C1", "C2"]

class WideDeepModel:
    def net(self, is_train=True):
        dense = paddle.static.data("dense_input", [None, 3])
        ids = [paddle.static.data(name, [None, 1], "int64") for name in SLOTS]
        label = paddle.static.data("label", [None, 1], "int64")
        self.inputs = [dense, *ids, label]
        attr = paddle.ParamAttr(name="embedding")
        rows = [paddle.fluid.layers.embedding(i, [100, 4], is_sparse=True, param_attr=attr)
                for i in ids]
        x = paddle.concat([*rows, dense], axis=1)
        x = paddle.static.nn.fc(x, 8, activation="relu")
        predict = paddle.static.nn.fc(x, 2, activation="softmax")
        self.predict = predict
        self.auc, self.batch_auc, (_, _, self.stat_pos, self.stat_neg) = paddle.static.auc(
            predict, label, num_thresholds=2**12)
        self.cost = self.loss = paddle.mean(
            paddle.fluid.layers.cross_entropy(predict, label))
        self.loader = paddle.io.DataLoader.from_generator(
            feed_list=self.inputs, capacity=4, iterable=False)

batch_size = 16

def WideDeepDataset(data_path):
    def samples():
        for feed in batches(10):
            yield from zip(*(feed[name] for name in ["dense_input", *SLOTS, "label"]))
    return samples

def batches(count, size=16):
    rng = np.random.default_rng(0)
    for _ in range(count):
        feed = {name: rng.integers(100, size=(size, 1)) for name in SLOTS}
        feed["dense_input"] = rng.standard_normal((size, 3), dtype="float32")
        feed["label"] = (feed["C1"] > 50).astype("int64")
        yield feed

def distributed_training(exe, model):
    losses = []
    for step, feed in enumerate(batches(200)):
        losses.append(exe.run(feed=feed, fetch_list=[model.cost])[0].item())
    print("losses", np.mean(losses[:5]), np.mean(losses[-20:]))
    assert np.mean(losses[-20:]) < np.mean(losses[:5])

def clear_metric_state(model, place):
    for name in [model.stat_pos.name, model.stat_neg.name]:
        variable = paddle.static.global_scope().find_var(name)
        tensor = variable.get_tensor()
        tensor.set(np.zeros(tensor._get_dims(), "int64"), place)
"""

#: The network of `SERVERS`, to be trained on servers.
ON_SERVERS = """
fleet.init()
model = WideDeepModel()
model.net(is_train=True)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
optimizer = fleet.distributed_optimizer(paddle.optimizer.Adam(0.01), strategy)
optimizer.minimize(model.cost)
"""

#: Lines that fragments about metrics leave out. `train` runs the startup program and one step.
METRICS = """
import numpy as np
import paddle
import paddle.distributed.fleet as fleet

paddle.enable_static()
exe = paddle.static.Executor(threads=1)

def model():
    x = paddle.static.data("x", [None, 2])
    label = paddle.static.data("label", [None, 1], LABEL or "float32")
    pred = paddle.static.nn.fc(x, WIDTH, weight_attr=paddle.nn.initializer.Constant(1.0))
    return (paddle.mean(pred) if LABEL is None else (pred, label))

def train():
    exe.run(paddle.static.default_startup_program())
    feed = {"x": np.ones((4, 2), "float32") * (1 + fleet.worker_index())}
    if paddle.static.default_main_program().has_var("label"):
        feed["label"] = np.zeros((4, 1), LABEL or "float32")
    exe.run(feed=feed)
    class WithFeed:
        def run(self, program, fetch_list):
            return exe.run(program, feed, fetch_list)
    return WithFeed()
"""

JOINED = "fleet.init(is_collective=True)"

TWO = "--nproc_per_node=2"

#: The part of the worker of a job that does not train.
WORKER_ONLY = """
if fleet.is_worker():
    paddle.static.Executor().run(paddle.static.default_startup_program())
    fleet.init_worker()
    fleet.stop_worker()
"""

#: Both parts start at once here: without this, the worker refuses to wait for the server.
WAITING = ('"launch_barrier": False', '"launch_barrier": True')

ONE_ONE = "--server_num=1 --worker_num=1"

PS = "--server_num=1 --worker_num=2"

#: The model of the listings of document 002 from line 499 on, smaller.
RESNET = """
import paddle

paddle.dataset.flowers.SAMPLES["train"] = 28

class ResNet:
    def __init__(self, layers):
        assert layers == 50

    def net(self, input, class_dim):
        x = paddle.static.nn.conv2d(input, 4, 7, stride=4, bias_attr=False)
        x = paddle.static.nn.batch_norm(x, act="relu")
        x = paddle.fluid.layers.pool2d(x, pool_type="avg", global_pooling=True)
        return paddle.static.nn.fc(x, class_dim)
"""

#: A model with the inputs of the reader of document 002, line 2968.
CRITEO = """
import numpy as np
import paddle
import paddle.distributed.fleet as fleet
import config

paddle.enable_static()
fleet.init(is_collective=True)

class model:
    dense = paddle.static.data("dense_input", [None, 13])
    ids = [paddle.static.data(f"C{i}", [None, 1], "int64") for i in range(1, 27)]
    label = paddle.static.data("label", [None, 1], "int64")
    inputs = [dense, *ids, label]
    rows = paddle.static.nn.embedding(paddle.concat(ids, axis=1), [1000001, 2], is_sparse=True)
    x = paddle.concat([paddle.flatten(rows, 1), dense], axis=1)
    cost = paddle.nn.functional.cross_entropy(paddle.static.nn.fc(x, 2), label)

fleet.distributed_optimizer(paddle.optimizer.SGD(0.1)).minimize(model.cost)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    raise SystemExit
exe = paddle.static.Executor(threads=1)
exe.run(paddle.static.default_startup_program())
"""

CONFIG = """
config = {"batch_size": 8, "thread_num": 1, "train_files_path": "part-0"}
"""

#: 32 lines of a click log: a label, 13 numbers, 26 words.
TABLE = "".join(
    "\t".join([str(row % 2), "0", "1", "1", *["0"] * 9, "", *[f"w{row % 3}{c}" for c in range(26)]])
    + "\n"
    for row in range(32)
)

MOMENTUM = "paddle.optimizer.Momentum(0.1, 0.9)"


class Case:
    """A program: `parts` are keys of listings, and code in between.

    ``how`` is "alone", or flags of `fleetrun`. ``shown`` are patterns of the output, of all
    processes together. With ``fails``, the program ends with an error of this text. With ``first``,
    it runs with these arguments before.
    """

    def __init__(
        self, name, parts, how="alone", shown=(), fails=None, files=None, edits=(), first=None
    ):
        self.name = name
        self.parts = parts
        self.how = how
        self.shown = shown
        self.fails = fails
        self.files = files or {}
        self.edits = edits
        self.first = first

    @property
    def keys(self):
        listed = [text for text in self.files.values() if isinstance(text, list)]
        return [part for parts in [self.parts, *listed] for part in parts if is_key(part)]

    def script(self):
        text = joined(self.parts)
        for old, new in self.edits:
            assert old in text, f"{self.name}: '{old}' is not in the program"
            text = text.replace(old, new)
        return text


def is_key(part):
    return re.fullmatch(r"\d{3}:\d+", part)


def joined(parts):
    """Returns parts as a text."""
    lines = []
    for part in parts:
        if is_key(part):
            lines += [f"# {part}", documents.listings(part[:3])[part].text]
        else:
            lines.append(part)
    return "\n".join(lines)


def strategies(document, *lines, fails=None, optimizer=""):
    """Parts of a program that trains with the strategy of each listing."""
    parts = [COLLECTIVE]
    for line in lines:
        call = f"finish(globals().get('dist_strategy') or strategy{optimizer})"
        parts += ["dist_strategy = strategy = None", f"{document}:{line}", call]
    return parts


CASES = [
    Case("000-fusions", strategies("000", 88, 122, 167, 188), shown=["applied"]),
    Case("000-levels", strategies("000", 133), how="--nproc_per_node=2", shown=["applied"]),
    Case(
        "000-fetches",
        [
            COLLECTIVE,
            NETWORK,
            "xrange, PASS_NUM, fetch_list = range, 1, [loss]",
            "steps = 0\nclass exe:\n    @staticmethod\n    def run(what):\n"
            "        global steps\n        steps += 1\n        if steps > 61:\n"
            "            raise SystemExit('61 steps')\n"
            "        return real.run(fetch_list=what, feed=feed)\n"
            "real = paddle.static.Executor(threads=1)\n"
            "real.run(paddle.static.default_startup_program())",
            # The loop has no end and never counts `batch_id`.
            "000:236",
        ],
        fails="61 steps",
    ),
    Case(
        "000-fleetx",
        [
            "import paddle\nimport paddle.fluid as fluid",
            "000:276",
            "feed = next(loader())\nprint('image', feed['x'].shape)",
        ],
        shown=[r"image \(32, 3, 224, 224\)", "samples are generated"],
    ),
    Case(
        "001-infinite",
        [
            COLLECTIVE,
            NETWORK,
            "import itertools\n"
            "xrange, NUM_PASSES, iters_per_pass = range, 2, range(5)\n"
            "process = lambda line: [np.full(4, float(line), 'float32'), [1.0]]\n"
            "data_loader = paddle.io.DataLoader.from_generator(\n"
            "    feed_list=[x, label], capacity=4, iterable=False)\n"
            "real, seen = paddle.static.Executor(threads=1), []\n"
            "real.run(paddle.static.default_startup_program())\n"
            "class exe:\n    @staticmethod\n    def run():\n"
            "        seen.append(real.run(fetch_list=[x])[0][0, 0])\n"
            "open('numbers.txt', 'w').write('1\\n2\\n3\\n')",
            "001:26",
            "data_loader.set_sample_generator(\n"
            "    lambda: infinite_reader('numbers.txt'), batch_size=1)\n"
            "train()\nprint('seen', [int(number) for number in seen])",
        ],
        shown=[r"seen \[1, 2, 3, 1, 2, 3, 1, 2, 3, 1\]"],
    ),
    Case(
        "001-strategy",
        [
            COLLECTIVE,
            "from paddle.distributed.fleet import DistributedStrategy\n"
            "main_prog, startup_prog = paddle.static.Program(), paddle.static.Program()\n"
            "with fluid.program_guard(main_prog, startup_prog):\n"
            + re.sub("^", "    ", NETWORK, flags=re.MULTILINE)
            + "\n    class model:\n        params = main_prog.all_parameters()\n"
            "optimizer_setting = lambda params: paddle.optimizer.SGD(0.1, parameters=params)\n"
            "PASS_NUM, fetch_frequency, fetch_list, runs = 1, 2, [avg_cost], 0\n"
            "real = paddle.static.Executor(threads=1)\n"
            "class exe:\n    @staticmethod\n    def run(program, fetch_list=()):\n"
            "        global batch_id\n        batch_id += 1\n"
            "        if batch_id == 1:\n            real.run(startup_prog)\n"
            "        if batch_id > 4:\n            raise SystemExit('4 steps')\n"
            "        return real.run(program or main_prog, feed, fetch_list)",
            "001:75",
        ],
        fails="4 steps",
    ),
    Case(
        "002-init",
        [
            COLLECTIVE,
            "optimizer = paddle.optimizer.SGD(0.1)",
            "002:444",
            "002:452",
            "002:461",
            "print(type(optimizer).__name__)",
        ],
        shown=["DistributedOptimizer"],
    ),
    Case("002-strategies", strategies("002", 748, 808, 1267), shown=["applied.*AMP"]),
    Case("002-levels", strategies("002", 877), how="--nproc_per_node=2", shown=["applied"]),
    Case(
        "002-dgc",
        [
            COLLECTIVE,
            "strategy = fleet.DistributedStrategy()\nstrategy.dgc = True",
            "002:951",
            f"finish(strategy, {MOMENTUM})",
            "002:968",
            f"finish(strategy, {MOMENTUM})",
            "002:978",
            f"finish(strategy, {MOMENTUM})",
            "002:1047",
            f"finish(strategy, {MOMENTUM})",
        ],
        how="--nproc_per_node=2",
        shown=["applied.*DGC"],
    ),
    Case(
        "002-localsgd",
        strategies("002", 1144, 1164),
        how="--nproc_per_node=2",
        shown=["applied.*LocalSGD", "AdaptiveLocalSGD"],
    ),
    Case(
        "002-recompute",
        [COLLECTIVE, "002:1448", "002:1464", "print(strategy.recompute_configs['checkpoints'])"],
        shown=["res5c.add.output.5.tmp_0"],
    ),
    Case("002-lars", strategies("002", 1667, optimizer=f", {MOMENTUM}"), shown=["applied.*Lars"]),
    Case(
        "002-lamb",
        strategies("002", 1780, optimizer=", paddle.optimizer.Adam(0.1)"),
        shown=["applied.*Lamb"],
    ),
    Case(
        "002-pipeline",
        strategies("002", 2074),
        how="--nproc_per_node=2",
        shown=["applied.*Pipeline"],
    ),
    Case(
        "002-pipeline-configs",
        [COLLECTIVE, "002:2087", "print(dist_strategy.pipeline_configs)"],
        shown=["micro_batch.*4"],
    ),
    *[
        Case(
            f"002-sparse-{line}",
            [
                "import paddle\npaddle.enable_static()\n"
                f"x = paddle.static.data('x', [None, {last}], 'int64')\n"
                "id_num, id_value_shape = 10, 3",
                f"002:{line}",
                "print(embedding.shape, paddle.static.default_main_program())",
            ],
            shown=["3", "(is_sparse: true|distributed_lookup_table)"],
        )
        for line, last in [(2847, 4), (2861, 4), (2875, 1), (2889, 4)]
    ],
    Case(
        "002-resnet",
        ["002:469", "002:499", "002:557"],
        how="--gpus=0,1",
        files={"resnet_static.py": RESNET},
        edits=[("    epoch = 10", "    epoch = 2"), ("batch_size = 32", "batch_size = 4")],
        shown=[
            r"\[Epoch 1, batch 5\] loss: \d+\.\d{5}, acc1: \d",
            "samples are generated",
            "programs run on the CPU",
        ],
    ),
    Case(
        "002-devices",
        [
            "import paddle\nfrom paddle.static import nn\npaddle.enable_static()",
            "002:2047",
            "002:2066",
            "loader, loss = build_network()\nloader.set_batch_generator(\n"
            "    lambda: iter([[[3]], [[4]]]))\nexe = paddle.static.Executor()\n"
            "exe.run(paddle.static.default_startup_program())\nloader.start()\n"
            "try:\n    while True:\n        print('loss', exe.run(fetch_list=[loss])[0])\n"
            "except paddle.core.EOFException:\n    print('end')\n    loader.reset()\n"
            "print(paddle.static.default_main_program())",
        ],
        shown=["loss", "end", "device.*gpu:1"],
    ),
    Case(
        "002-loop",
        [
            SERVERS,
            ON_SERVERS,
            "avg_cost, reader = model.cost, model.loader\n"
            "reader.set_sample_generator(WideDeepDataset('.'), batch_size=16)",
            "002:2252",
            "    pass",
            "002:2283",
        ],
        how=PS,
        edits=[("    pass\n# 002:2283\n", "# 002:2283\n    ")],
        shown=["TRAIN --> pass: 0 loss: "],
    ),
    Case(
        "002-dataset",
        [
            CRITEO,
            "002:2937",
            "dataset.load_into_memory()\nlosses = []\nfor _ in range(2):\n"
            "    exe.train_from_dataset(paddle.static.default_main_program(), dataset,\n"
            "        fetch_list=[model.cost], fetch_info=['cost'], print_period=1)\n"
            "print('records', dataset.get_memory_data_size())",
        ],
        files={"reader.py": ["002:2968", "002:3012"], "config.py": CONFIG, "part-0": TABLE},
        shown=["records 32", "cost"],
    ),
    Case(
        "002-reader",
        [
            "import subprocess\n"
            "print(subprocess.check_output('cat part-0 | python reader.py', shell=True, text=True))"
        ],
        files={"reader.py": ["002:2968", "002:3012"], "part-0": TABLE},
        shown=[r"13 0\.0 0\.006633499170812604 0\.01 .* 1 \d+ 1 \d+ .* 1 1\n"],
    ),
    Case(
        "002-streaming",
        [
            CRITEO.replace("is_collective=True", ""),
            "import os\nfleet.init_worker()",
            "002:2937",
            "model.auc, day, hour = model.cost, 1, 0\n"
            "exe.train_from_dataset(program=paddle.static.default_main_program(),",
            "002:3333",
            "print('saved', os.listdir('output'))",
        ],
        how=ONE_ONE,
        files={
            "reader.py": ["002:2968", "002:3012"],
            "part-0": TABLE,
            "config.py": CONFIG.replace("8", "2"),
        },
        edits=[("InMemoryDataset", "QueueDataset")],
        shown=["avg_auc", "saved .*epoch_1"],
    ),
    Case(
        "002-infer",
        [SERVERS, ON_SERVERS, "002:3730"],
        how=PS,
        edits=[("...\nmodel = WideDeepModel()\nmodel.net(is_train=True)\n", "")],
        shown=["losses"],
    ),
    Case(
        "002-infer-a-save",
        [
            SERVERS,
            "import sys\nif len(sys.argv) > 1:\n"
            + re.sub("^", "    ", ON_SERVERS, flags=re.MULTILINE)
            + "\n    if fleet.is_server():\n        fleet.init_server()\n"
            "        fleet.run_server()\n"
            "    else:\n        exe.run(paddle.static.default_startup_program())\n"
            "        fleet.init_worker()\n        distributed_training(exe, model)\n"
            "        fleet.save_persistables('init_params')\n        fleet.stop_worker()\n"
            "    raise SystemExit",
            "test_main_program = paddle.static.default_main_program()\n"
            "test_startup_program = paddle.static.default_startup_program()",
            "002:3781",
        ],
        how=PS,
        first=["save"],
        edits=[("optimizer.Adam(0.01)", "optimizer.SGD(0.5)")],
        shown=["TEST ---> batch_idx: 0 loss: 0.0"],
    ),
    Case(
        "002-modes",
        [
            SERVERS,
            "fleet.init()\nmodel = WideDeepModel()\nmodel.net()",
            "002:2227",
            "if fleet.is_server():\n    fleet.init_server()\n    fleet.run_server()\nelse:\n"
            "    exe.run(paddle.static.default_startup_program())\n    fleet.init_worker()\n"
            "    for feed in batches(3):\n        exe.run(feed=feed)\n    print('trained')",
            "    fleet.stop_worker()",
        ],
        how=PS,
        shown=["trained"],
    ),
    Case(
        "002-server",
        ["002:2526", "002:2550", "    fleet.run_server()", WORKER_ONLY],
        how=ONE_ONE,
        edits=[WAITING],
    ),
    Case(
        "002-worker",
        [
            "002:2704",
            "if fleet.is_server():\n    fleet.init_server()\n    fleet.run_server()",
            WORKER_ONLY,
        ],
        how=ONE_ONE,
        edits=[WAITING],
        shown=["worker_main_program: (.|\\n)*embedding_0.w_0"],
    ),
    Case(
        "002-heter",
        ["002:2807", "print(paddle.static.default_main_program())"],
        shown=["device.*cpu"],
    ),
    Case(
        "002-geo",
        [SERVERS, "002:3143", "002:3153", "002:3162", "002:3170", "002:3185", "002:3198"],
        how=PS,
        edits=[("SGD(learning_rate=0.0001)", "SGD(learning_rate=0.5)"), ("400}", "4}")],
        shown=["losses"],
    ),
    Case(
        "002-word2vec",
        [
            SERVERS.replace("model.stat_pos.name, model.stat_neg.name", "()"),
            "import fleetx as X\nX.applications.Word2vec.SAMPLES = 2000",
            "002:3072",
        ],
        how=PS,
        edits=[
            ("optimizer = fleet", "optimizer = paddle.optimizer.SGD(0.1)\noptimizer = fleet"),
            ("for name in [()]", "for name in ()"),
            ("enumerate(batches(200))", "enumerate(loader())"),
            ("Word2vec()", "Word2vec(vocabulary=50, width=8)"),
        ],
        files={"config.py": "config = {'train_files_path': 'train', 'dict_path': 'dict'}"},
        shown=["samples are generated", "losses"],
    ),
    Case(
        "002-save",
        [
            SERVERS,
            ON_SERVERS,
            "if fleet.is_server():\n    fleet.init_server()\n"
            "    fleet.run_server()\n    raise SystemExit\n"
            "exe.run(paddle.static.default_startup_program())\nfleet.init_worker()\n"
            "distributed_training(exe, model)\nfleet.barrier_worker()",
            "002:3260",
            "    print('saved', sorted(os.listdir(dirname)))",
            "002:2283",
        ],
        how=PS,
        edits=[("/you/path/to/model", "saved"), ("import numpy", "import os\nimport numpy")],
        shown=["saved .*tables.txt"],
    ),
    Case(
        "002-load",
        [
            SERVERS,
            "import os, sys\n" + ON_SERVERS,
            "if len(sys.argv) > 1:\n"
            "    if fleet.is_server():\n        fleet.init_server()\n        fleet.run_server()\n"
            "    else:\n        exe.run(paddle.static.default_startup_program())\n"
            "        fleet.init_worker()\n        distributed_training(exe, model)\n"
            "        fleet.save_persistables('saved')\n        fleet.stop_worker()\n"
            "    raise SystemExit",
            "002:3274",
            "if fleet.is_server():\n    raise SystemExit\n"
            "loss = exe.run(feed=next(batches(1)), fetch_list=[model.cost])[0].item()\n"
            "print('loss', loss)\nassert loss < 0.5",
            "fleet.stop_worker()",
        ],
        how=PS,
        first=["save"],
        edits=[("/you/path/to/model", "saved"), ('["w", "b"]', '["fc_0.w_0", "fc_0.b_0"]')],
        shown=["loss"],
    ),
    Case(
        "002-accuracy",
        [
            "LABEL, WIDTH = 'int64', 3",
            METRICS,
            "002:3375",
            "002:3382",
            "train()",
            "002:3409",
            "print('accuracy', global_accuracy)",
        ],
        shown=["accuracy 1.0"],
    ),
    Case(
        "002-accuracy-of-two",
        [
            "LABEL, WIDTH = 'int64', 3",
            METRICS,
            JOINED,
            "002:3432",
            "print('accuracy', global_accuracy)",
        ],
        how=TWO,
        edits=[("global_accuracy = ", "train()\nglobal_accuracy = ")],
        shown=["accuracy 1.0"],
    ),
    Case(
        "002-auc",
        [
            "LABEL, WIDTH = 'int64', 2",
            METRICS,
            JOINED,
            "stat_pos = np.array([[0, 0, 0, 4]])\n" "stat_neg = np.array([[5, 0, 0, 0]])",
            "import paddle.distributed",
            "area = \\",
            "002:3422",
            "print('area', area)",
        ],
        how=TWO,
        edits=[
            ("area = \\\n# 002:3422\n", "area = "),
            ("auc(", "auc("),
            ("stat_pos, stat_neg,", "stat_pos, stat_neg,"),
        ],
        shown=["area 1.0"],
    ),
    Case(
        "002-mae",
        ["LABEL, WIDTH = 'float32', 1", METRICS, JOINED, "002:3485", "print('mae', global_mae)"],
        how=TWO,
        edits=[("global_mae = ", "train()\nglobal_mae = ")],
        shown=["mae 3.0"],
    ),
    Case(
        "002-mse",
        ["LABEL, WIDTH = 'float32', 1", METRICS, JOINED, "002:3533", "print('mse', global_mse)"],
        how=TWO,
        edits=[("global_mse = ", "train()\nglobal_mse = ")],
        shown=["mse 10.0"],
    ),
    *[
        Case(
            f"002-{name}",
            ["LABEL, WIDTH = None, 1", METRICS, JOINED, f"002:{line}", f"print('{name}', {name})"],
            how=TWO,
            edits=[
                ("loss_val, =", "with_feed = train()\nloss_val, ="),
                ("exe.run(paddle.static.default_main", "with_feed.run(paddle.static.default_main"),
            ],
            shown=[f"{name} .*{value}"],
        )
        for name, line, value in [
            ("loss_sum", 3587, "6"),
            ("max_loss", 3614, "4"),
            ("min_loss", 3640, "2"),
        ]
    ],
    Case("002-static", ["import paddle", "002:2907"]),
    Case(
        "003-objects",
        [COLLECTIVE, "003:21", "finish(strategy)", "003:35", "finish(strategy)"],
        shown=["applied"],
    ),
    Case("003-auto", [COLLECTIVE, "003:54", "finish(strategy)"], shown=["applied"]),
    Case(
        "003-recompute",
        [COLLECTIVE, "003:70", "print(strategy.recompute_configs['checkpoint_shape'])"],
        shown=[r"\[100, 512, 1024\]"],
    ),
    Case(
        "003-pipeline",
        strategies("003", 94),
        how="--nproc_per_node=2",
        shown=["applied.*Pipeline"],
    ),
    Case("003-pipeline-configs", [*strategies("003", 106)], fails="pipeline"),
    Case("003-lars", strategies("003", 133, optimizer=f", {MOMENTUM}"), shown=["applied.*Lars"]),
    Case(
        "003-lamb",
        strategies("003", 161, optimizer=", paddle.optimizer.Adam(0.1)"),
        shown=["applied.*Lamb"],
    ),
    Case(
        "003-localsgd",
        strategies("003", 183, 193, 208, 218),
        how="--nproc_per_node=2",
        shown=["applied.*LocalSGD", "AdaptiveLocalSGD"],
    ),
    Case("003-amp", strategies("003", 254), shown=["applied.*AMP"]),
    Case(
        "003-dgc",
        strategies("003", 267, 283, optimizer=f", {MOMENTUM}"),
        how="--nproc_per_node=2",
        shown=["applied.*DGC"],
    ),
    Case("003-fp16", strategies("003", 294), how="--nproc_per_node=2", shown=["applied.*FP16"]),
    Case("003-sharding", [*strategies("003", 304)], how="--nproc_per_node=2"),
    Case("003-sharding-configs", [*strategies("003", 318)], how="--nproc_per_node=2"),
    Case(
        "004-servers",
        [
            COLLECTIVE.replace("fleet.init(is_collective=True)", ""),
            NETWORK,
            "fluid.optimizer.SGD(0.1).minimize(loss)\n"
            "trainer_id, main_program = 0, fluid.default_main_program()",
            "004:19",
            "print(t.get_trainer_program(), t.get_pserver_program('192.168.0.2:6174'))",
        ],
        shown=["send_barrier", "listen_and_serv"],
    ),
    Case(
        "004-nccl2",
        [
            COLLECTIVE.replace("fleet.init(is_collective=True)", "import os"),
            NETWORK,
            "fluid.optimizer.SGD(0.1).minimize(loss)\n"
            "trainer_id = int(os.environ['PADDLE_TRAINER_ID'])\n"
            "main_program = fluid.default_main_program()\n"
            "startup_program = fluid.default_startup_program()",
            "004:69",
            "exe = fluid.Executor()\nexe.run(startup_program)\n"
            "losses = [exe.run(main_program, feed, [loss])[0].item() for _ in range(9)]\n"
            "print('falls', losses[-1] < losses[0])",
        ],
        how=TWO,
        edits=[
            ('"192.168.0.1:6174,192.168.0.2:6174"', "os.environ['PADDLE_TRAINER_ENDPOINTS']"),
            ('"192.168.0.1:6174"', "os.environ['PADDLE_CURRENT_ENDPOINT']"),
        ],
        shown=["falls True"],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_program_of_the_documents(case, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(case.script(), encoding="utf-8")
    for name, text in case.files.items():
        text = joined(text) if isinstance(text, list) else text
        (tmp_path / name).write_text(text, encoding="utf-8")
    if case.how == "alone":
        call = [sys.executable, "-m", "fleet.compat", "train.py"]
    else:
        fleetrun = os.path.join(sysconfig.get_path("scripts"), "fleetrun")
        call = [fleetrun, *case.how.split(), "--compat=paddle", "--start_timeout=100", "train.py"]
    if case.first:
        before = subprocess.run([*call, *case.first], capture_output=True, text=True, cwd=tmp_path)
        assert before.returncode == 0, before.stdout + before.stderr
    ran = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    logs = [path.read_text() for path in sorted((tmp_path / "log").glob("*log.*"))]
    output = "\n".join([ran.stdout, ran.stderr, *logs])
    if case.fails is None:
        assert ran.returncode == 0, output[-6000:]
    else:
        assert ran.returncode != 0 and case.fails in output, output[-6000:]
    for pattern in case.shown:
        assert re.search(pattern, output), f"{pattern} is not in:\n{output[-6000:]}"


#: Listings that are no programs: pieces of text that look like code, or that tests cannot use.
LEFT_OUT = {}


def test_every_listing_is_in_a_case():
    used = {key for case in CASES for key in case.keys} | set(LEFT_OUT)
    missing = []
    for document in ["000", "001", "002", "003", "004"]:
        for key, listing in documents.listings(document).items():
            if (document != "002" or documents.is_python(listing)) and key not in used:
                missing.append(f"{key}: {listing.lines[0][1]}")
    assert not missing, "\n".join(missing)
