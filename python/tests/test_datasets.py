"""Datasets of files and tables, `train_from_dataset`, and programs of pipe commands."""

import io
import os
import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import fleet as package
from fleet import fluid, static
from fleet.distributed import InMemoryDataset, QueueDataset, fleet
from fleet.nn import functional as F
from test_fuzz import ORDINARY, VALUES


@pytest.fixture
def regression():
    """A network of the inputs x and y, and its loss."""
    x, y = static.data("x", [None, 2]), static.data("y", [None, 1])
    prediction = static.nn.fc(x, 1, bias_attr=False)
    loss = F.mse_loss(prediction, y)
    return x, y, loss


def write(path, count, start=0):
    """Writes records of x = (n, 1), y = 2 n + 1."""
    lines = (f"2 {n / 64} 1 1 {2 * n / 64 + 1}\n" for n in range(start, start + count))
    path.write_text("".join(lines))
    return str(path)


def filled(dataset, tmp_path, use_var, files=2, count=10, **settings):
    dataset.init(use_var=use_var, **settings)
    dataset.set_filelist([write(tmp_path / f"part-{n}", count, n * count) for n in range(files)])
    return dataset


def values(dataset, name="x"):
    return [batch[name][:, 0].tolist() for batch in dataset]


# Training


def test_training_on_a_queue_dataset(exe, tmp_path, capsys, regression):
    x, y, loss = regression
    package.optimizer.SGD(0.1).minimize(loss)
    exe.run(static.default_startup_program())
    dataset = filled(QueueDataset(), tmp_path, [x, y], batch_size=8, thread_num=4)
    before = static.global_scope()["fc_0.w_0"]
    for _ in range(30):
        assert exe.train_from_dataset(dataset=dataset, print_period=0) is None
    capsys.readouterr()
    exe.train_from_dataset(
        static.default_main_program(),
        dataset,
        thread=1,
        fetch_list=[loss],
        fetch_info=["loss"],
        print_period=2,
        debug=True,
    )
    lines = capsys.readouterr().out.splitlines()
    # 20 records in batches of 8: the last batch of a pass is smaller.
    assert lines[0].startswith("batch 2, loss: ") and len(lines) == 2
    assert lines[1].startswith("3 batches, 20 records in ")
    assert float(lines[0].split(": ")[1]) < 0.05
    assert not np.array_equal(static.global_scope()["fc_0.w_0"], before)


def test_a_pass_equals_steps_by_hand(exe, tmp_path, regression):
    x, y, loss = regression
    package.optimizer.Adam(0.01).minimize(loss)
    main, startup = static.default_main_program(), static.default_startup_program()
    dataset = filled(InMemoryDataset(), tmp_path, [x, y], batch_size=8, seed=3)
    dataset.load_into_memory()
    dataset.local_shuffle()
    exe.run(startup)
    exe.train_from_dataset(main, dataset)
    trained = main.state_dict("param")["fc_0.w_0"]
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        for feed in dataset:
            exe.run(main, feed=feed)
        assert np.array_equal(main.state_dict("param")["fc_0.w_0"], trained)


def test_inference_trains_nothing(exe, tmp_path, capsys, regression):
    x, y, loss = regression
    package.optimizer.SGD(0.1).minimize(loss)
    main = static.default_main_program()
    exe.run(static.default_startup_program())
    dataset = filled(QueueDataset(), tmp_path, [x, y], batch_size=8)
    before = main.state_dict()
    step = static.global_scope()._cell.step
    exe.infer_from_dataset(main, dataset, fetch_list=[loss.name], print_period=1)
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "batch 1",
        "batch 2",
        "batch 3",
    ]
    assert all(np.array_equal(value, before[name]) for name, value in main.state_dict().items())
    assert static.global_scope()._cell.step == step


def test_the_fetch_handler_gets_arrays(exe, tmp_path, capsys, regression):
    x, y, loss = regression
    exe.run(static.default_startup_program())
    dataset = filled(QueueDataset(), tmp_path, [x, y], batch_size=5)
    seen = []

    class Handler(static.FetchHandler):
        def handler(self, res_dict):
            seen.append(res_dict)

    handler = Handler({"rows": x, "loss": loss}, period_secs=0)
    exe.train_from_dataset(dataset=dataset, fetch_handler=handler, fetch_list=[y], print_period=4)
    assert [sorted(values) for values in seen] == [["loss", "rows"]] * 4
    assert seen[1]["rows"][:, 0].tolist() == [n / 64 for n in range(5, 10)]
    assert capsys.readouterr().out.startswith("batch 4, y: [")

    class Broken(static.FetchHandler):
        def handler(self, res_dict):
            raise KeyError("in the handler")

    with pytest.raises(KeyError, match="in the handler"):
        exe.train_from_dataset(dataset=dataset, fetch_handler=Broken({"loss": loss}, 0))


def test_arguments_of_a_pass(exe, tmp_path, raises, regression):
    x, y, loss = regression
    exe.run(static.default_startup_program())
    dataset = filled(QueueDataset(), tmp_path, [x, y])

    def run(**arguments):
        return lambda: exe.train_from_dataset(**{"dataset": dataset, **arguments})

    raises(ValueError, ["dataset", "None"], run(dataset=None))
    raises(TypeError, ["dataset"], run(dataset=[1]))
    raises(TypeError, ["program"], run(program="main"))
    raises(ValueError, ["thread"], run(thread=-1))
    raises(ValueError, ["print_period"], run(print_period=-1))
    raises(ValueError, ["fetch_info", "1 labels"], run(fetch_list=[loss], fetch_info=["a", "b"]))
    raises(ValueError, ["no_such"], run(fetch_list=["no_such"]))
    raises(TypeError, ["FetchHandler"], run(fetch_handler=print))
    with pytest.warns(RuntimeWarning, match="no batches"):
        empty = tmp_path / "empty"
        empty.write_text("")
        dataset.set_filelist([empty])
        run()()
    only = QueueDataset()
    only.init(use_var=[x])
    only.set_filelist([write(tmp_path / "other", 1)])
    raises(ValueError, ["input 'y'"], run(dataset=only))


# Datasets in memory


def test_an_in_memory_dataset(tmp_path, regression):
    x, y, _ = regression
    dataset = filled(InMemoryDataset(), tmp_path, [x, y], batch_size=20)
    assert dataset.get_memory_data_size() == 0
    dataset.preload_into_memory(2)
    dataset.wait_preload_done()
    assert dataset.get_memory_data_size() == 20 and dataset.get_shuffle_data_size() == 0
    in_order = [n / 64 for n in range(20)]
    assert values(dataset) == [in_order]
    dataset.local_shuffle()
    (shuffled,) = values(dataset)
    assert shuffled != in_order and sorted(shuffled) == in_order
    dataset.global_shuffle()
    assert dataset.get_shuffle_data_size() == 20
    (again,) = values(dataset)
    assert again != shuffled and sorted(again) == in_order
    dataset.slots_shuffle(["y"])
    (batch,) = dataset
    assert batch["y"][:, 0].tolist() != (2 * batch["x"][:, 0] + 1).tolist()
    dataset.update_settings(batch_size=7, drop_last=True)
    assert [len(batch["x"]) for batch in dataset] == [7, 7]
    assert dataset.get_memory_data_size() == 20
    dataset.release_memory()
    assert dataset.get_memory_data_size() == 0


def test_sizes_and_shuffles_of_a_job(tmp_path, regression):
    x, y, _ = regression
    fleet.init(is_collective=True)
    dataset = filled(InMemoryDataset(), tmp_path, [x, y])
    dataset.load_into_memory(is_shuffle=True)
    dataset.global_shuffle(fleet)
    assert dataset.get_memory_data_size(fleet) == dataset.get_shuffle_data_size(fleet) == 20


WORKER = """
import fleet as package
from fleet import static
from fleet.distributed import fleet
import sys

fleet.init(is_collective=True)
x, y = static.data("x", [None, 2]), static.data("y", [None, 1])
loss = package.nn.functional.mse_loss(static.nn.fc(x, 1), y)
fleet.distributed_optimizer(package.optimizer.SGD(0.1)).minimize(loss)
exe = static.Executor(threads=1)
exe.run(static.default_startup_program())
files = fleet.util.get_file_shard(sys.argv[1:])
dataset = package.distributed.InMemoryDataset()
dataset.init(use_var=[x, y], batch_size=4)
dataset.set_filelist(files)
dataset.load_into_memory()
size = dataset.get_memory_data_size()
dataset.global_shuffle(fleet)
assert dataset.get_memory_data_size(fleet) == 30 and size in (20, 10)
# One worker has more batches than the other.
exe.train_from_dataset(dataset=dataset)
exe.infer_from_dataset(dataset=dataset, fetch_list=[loss], print_period=1)
weights = static.default_main_program().state_dict("param")["fc_0.w_0"].ravel().tolist()
assert fleet.util.all_gather(weights[0]) == [weights[0]] * 2
print("done", weights)
"""


def test_two_workers_train_from_their_datasets(tmp_path):
    files = [write(tmp_path / f"part-{n}", 10, n * 10) for n in range(3)]
    (tmp_path / "train.py").write_text(WORKER)
    fleetrun = os.path.join(os.path.dirname(sys.executable), "fleetrun")
    call = [fleetrun, "--nproc_per_node=2", "--log_dir=log", "train.py", *files]
    ran = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    logs = "".join(path.read_text() for path in sorted((tmp_path / "log").glob("*log*")))
    assert ran.returncode == 0, ran.stderr + logs
    assert "done" in ran.stdout + logs and "batch 1, " in ran.stdout + logs


SERVERS = """
import fleet as package
from fleet import static
from fleet.distributed import fleet
import sys

fleet.init()
x, y = static.data("x", [None, 2]), static.data("y", [None, 1])
word = static.data("word", [None, 1], "int64")
rows = static.nn.sparse_embedding(word, [100, 4], param_attr=package.ParamAttr(name="table"))
joined = package.concat([x, package.flatten(rows, start_axis=1)], axis=1)
loss = package.nn.functional.mse_loss(static.nn.fc(joined, 1), y)
strategy = fleet.DistributedStrategy()
strategy.a_sync = True
fleet.distributed_optimizer(package.optimizer.SGD(0.05), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = static.Executor(threads=1)
    exe.run(static.default_startup_program())
    fleet.init_worker()
    dataset = package.distributed.InMemoryDataset()
    dataset.init(use_var=[x, word, y], batch_size=4)
    dataset.set_filelist(fleet.util.get_file_shard(sys.argv[1:]))
    dataset.load_into_memory()
    dataset.global_shuffle(fleet)
    assert dataset.get_memory_data_size(fleet) == 40
    losses = []

    class Handler(static.FetchHandler):
        def handler(self, res_dict):
            losses.append(res_dict["loss"].item())

    for _ in range(30):
        exe.train_from_dataset(dataset=dataset, fetch_handler=Handler({"loss": loss}, 0))
    exe.infer_from_dataset(dataset=dataset, fetch_list=[loss], fetch_info=["infer"], print_period=1)
    assert losses[-1] < losses[0] / 4, (losses[0], losses[-1])
    print("done")
    fleet.stop_worker()
"""


def test_workers_of_servers_train_from_their_datasets(tmp_path):
    files = []
    for part in range(2):
        files.append(tmp_path / f"part-{part}")
        lines = (f"2 {n / 40} 1 1 {n % 5} 1 {n % 5}\n" for n in range(20))
        files[-1].write_text("".join(lines))
    (tmp_path / "train.py").write_text(SERVERS)
    (tmp_path / "one.py").write_text(SERVERS)
    fleetrun = os.path.join(os.path.dirname(sys.executable), "fleetrun")
    options = ["--server_num=1", "--worker_num=2", "--log_dir=log"]
    for call in [[fleetrun, *options, "train.py"], [sys.executable, "one.py"]]:
        ran = subprocess.run(
            [*call, *files], capture_output=True, text=True, cwd=tmp_path, timeout=120
        )
        logs = "".join(path.read_text() for path in sorted((tmp_path / "log").glob("*log*")))
        assert ran.returncode == 0, ran.stderr + logs
        assert "done" in ran.stdout + logs and "batch 1, infer: " in ran.stdout + logs


def test_the_old_spellings(tmp_path, regression):
    x, y, _ = regression
    for kind in ["InMemoryDataset", "QueueDataset"]:
        dataset = fluid.DatasetFactory().create_dataset(kind)
        dataset.set_filelist([write(tmp_path / "part-0", 5)])
        dataset.set_batch_size(3)
        dataset.set_thread(2)
        dataset.set_pipe_command("cat")
        dataset.set_use_var([x, y])
        if kind == "InMemoryDataset":
            dataset.load_into_memory()
        assert [len(batch["x"]) for batch in dataset] == [3, 2]
        assert dataset.get_filelist() == [str(tmp_path / "part-0")]
    with pytest.raises(ValueError, match="InMemoryDataset"):
        fluid.DatasetFactory().create_dataset("FileInstantDataset")


def test_ragged_slots_and_record_ids(tmp_path):
    words = static.data("words", [None, 1], "int64", lod_level=1)
    path = tmp_path / "part"
    path.write_text("1 u1 3 7 8 18446744073709551615\n1 u2 1 9\n")
    dataset = InMemoryDataset()
    dataset._init_distributed_settings(parse_ins_id=True)
    dataset.init(use_var=[words], batch_size=2)
    dataset.set_filelist([path])
    dataset.load_into_memory()
    (batch,) = dataset
    assert batch["words"].tolist() == [[7], [8], [-1], [9]]


# Pipe commands and generators


def script(tmp_path, body, name="generator.py"):
    path = tmp_path / name
    path.write_text(textwrap.dedent(body))
    return f"{sys.executable} {path}"


READER = """
    import fleet.distributed.fleet as fleet

    class Reader(fleet.MultiSlotDataGenerator):
        def generate_sample(self, line):
            def samples():
                number = float(line)
                print("not in the way of the samples")
                yield zip(["x", "y"], [[number, 1.0], [2 * number + 1]])

            return samples

    reader = Reader()
    reader.set_batch(4)
    reader.run_from_stdin()
"""


def test_a_generator_as_pipe_command(exe, tmp_path, regression):
    x, y, loss = regression
    files = []
    for part in range(2):
        files.append(tmp_path / f"part-{part}")
        files[-1].write_text("".join(f"{n / 64}\n" for n in range(part * 9, part * 9 + 9)))
    dataset = QueueDataset()
    command = script(tmp_path, READER)
    dataset.init(use_var=[x, y], pipe_command=command, batch_size=6, thread_num=1)
    dataset.set_filelist(files)
    assert sum(values(dataset), []) == [n / 64 for n in range(18)]


def test_slots_in_another_order_than_the_inputs(exe, tmp_path, raises, regression):
    x, y, _ = regression
    (tmp_path / "part").write_text("".join(f"{n}\n" for n in range(5)))
    dataset = InMemoryDataset()
    command = script(tmp_path, READER)
    dataset.init(use_var=[y, x], pipe_command=command)
    dataset.set_filelist([tmp_path / "part"])
    raises(
        RuntimeError,
        ["another order", "expected y, x, got x, y", "use_var"],
        dataset.load_into_memory,
    )
    dataset.init(use_var=[x, y], pipe_command=command)
    dataset.load_into_memory()
    # Other names say nothing about the order.
    other = script(tmp_path, READER.replace('"x"', '"features"'), "other.py")
    dataset.update_settings(pipe_command=other)
    dataset.load_into_memory()
    assert dataset.get_memory_data_size() == 5
    dataset.init(use_var=[x, y], pipe_command='test "$FLEET_SLOTS" = "x\ny" && ' + command)
    dataset.load_into_memory()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
@pytest.mark.parametrize("batched", [False, True])
def test_an_error_of_a_generator_has_its_line(batched):
    class Reader(fleet.MultiSlotDataGenerator):
        def generate_sample(self, line):
            return lambda: iter([[("x", [1] if line != 4 else [])]])

        def generate_batch(self, samples):
            made = [list(sample) for sample in samples] if batched else samples
            return lambda: iter(made)

    with pytest.raises(ValueError, match="slot 'x' has no values") as caught:
        Reader()._run(range(1, 9))
    where = "lines 1 to 8" if batched else "line 4"
    assert caught.value.__notes__ == [f"at {where} of the input"]


def test_python_is_this_interpreter_if_there_is_no_other(monkeypatch):
    from fleet._datasets import with_interpreter

    monkeypatch.setenv("PATH", "/nonexistent")
    assert with_interpreter("python reader.py -v") == f"{sys.executable} reader.py -v"
    assert with_interpreter("cat") == "cat" and with_interpreter("") == ""
    monkeypatch.undo()
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/" + name)
    assert with_interpreter("python reader.py") == "python reader.py"


def test_a_pipe_command_that_fails(exe, tmp_path, raises, regression):
    x, y, loss = regression
    exe.run(static.default_startup_program())
    path = write(tmp_path / "part-0", 3)
    dead = script(tmp_path, "import sys\nsys.exit('the schema is unknown')", "dead.py")
    for dataset in [QueueDataset(), InMemoryDataset()]:
        dataset.init(use_var=[x, y], pipe_command=dead)
        dataset.set_filelist([path])
        parts = ["dead.py", "exit status: 1", "the schema is unknown", path]
        if isinstance(dataset, InMemoryDataset):
            raises(RuntimeError, parts, dataset.load_into_memory)
        else:
            raises(RuntimeError, parts, lambda: exe.train_from_dataset(dataset=dataset))
    raised = script(tmp_path, READER.replace("float(line)", "float(line[9:])"), "broken.py")
    dataset.update_settings(pipe_command=raised)
    parts = ["ValueError: could not convert string to float", "broken.py", path]
    raises(RuntimeError, parts, dataset.load_into_memory)
    dataset.update_settings(pipe_command="echo 2 1.0; cat >/dev/null")
    raises(ValueError, ["part-0", "through 'echo", ":1:"], dataset.load_into_memory)


def test_a_generator_starts_without_numpy():
    code = "import sys, fleet.distributed.fleet as fleet; fleet.MultiSlotDataGenerator\n"
    code += "print([name for name in ('numpy', 'random', 'shutil', 'difflib') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n", ran.stdout + ran.stderr


CTRL_C = """
import os, sys, time
import fleet as package
from fleet import static

x = static.data("x", [None, 1])
exe = static.Executor(threads=1)
in_memory = sys.argv[1] == "load"
dataset = package.distributed.InMemoryDataset() if in_memory else package.distributed.QueueDataset()
command = f"echo $$ > pid; echo 1 0.5; kill -INT {os.getpid()}; exec sleep 1000"
dataset.init(use_var=[x], pipe_command=command, thread_num=2)
dataset.set_filelist(["part"])
try:
    if in_memory:
        dataset.load_into_memory()
    elif sys.argv[1] == "train":
        exe.train_from_dataset(dataset=dataset)
    else:
        list(dataset)
except KeyboardInterrupt:
    pid = int(open("pid").read())
    for _ in range(3000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            print("interrupted")
            break
        time.sleep(0.01)
"""


@pytest.mark.parametrize("call", ["load", "train", "iterate"])
def test_ctrl_c_ends_the_call_and_its_pipe_command(tmp_path, call):
    (tmp_path / "part").write_text("1 0.5\n")
    ran = subprocess.run(
        [sys.executable, "-c", CTRL_C, call],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert (ran.returncode, ran.stdout) == (0, "interrupted\n"), ran.stderr


GENERATORS = [
    ([("words", [1926, 8, 17]), ("label", [1])], "3 1926 8 17 1 1\n"),
    (zip(["x", "label"], [[1e-07, 0.1, 3], [1]]), "3 1e-07 0.1 3 1 1\n"),
    ((("x", [123456789.123, 1e22, -0.5, 2**63]),), "4 123456789.123 1e+22 -0.5 9223372036854775808\n"),
    ([("x", [np.float32(0.5), np.int64(7)])], "2 0.5 7\n"),
]


@pytest.mark.parametrize("sample, line", GENERATORS)
def test_lines_of_a_generator(sample, line):
    assert fleet.MultiSlotDataGenerator()._gen_str(sample) == line


def test_lines_of_strings(raises):
    strings = fleet.MultiSlotStringDataGenerator()
    sample = [("words", ["1926", "08", "17"]), ("label", ["1"])]
    assert strings._gen_str(sample) == "3 1926 08 17 1 1\n"
    raises(ValueError, ["must be strings"], lambda: strings._gen_str([("words", [1])]))


@pytest.mark.parametrize(
    "samples, part",
    [
        (["words"], "a sample must be in list or tuple type"),
        ([[]], "no slots"),
        ([[("x",)]], "a name and its values"),
        ([[(7, [1])]], "the name of a slot must be a string, got 7"),
        ([[("x", (1, 2))]], "slot 'x' must be a list, got tuple"),
        ([[("x", [])]], "slot 'x' has no values"),
        ([[("x", ["1"])]], "slot 'x' must be integers or floats, got '1'"),
        ([[("x", [True])]], "must be integers or floats, got True"),
        ([[("x", [float("nan")])]], "not finite"),
        (
            [[("x", [1]), ("y", [1])], [("x", [1])]],
            "another number of slots than the first one: expected 2, got 1",
        ),
        (
            [[("a", [1])], [("b", [1])]],
            "another slot than the first one: expected 'a', got 'b'",
        ),
    ],
)
def test_samples_that_cannot_be_written(samples, part):
    generator = fleet.MultiSlotDataGenerator()
    with pytest.raises(ValueError, match=part.replace("(", r"\(").replace(")", r"\)")):
        for sample in samples:
            generator._gen_str(sample)


def test_a_float_makes_a_slot_of_floats():
    generator = fleet.data_generator.MultiSlotDataGenerator()
    for sample in [[("x", [1])], [("x", [0.5])], [("x", [2])]]:
        generator._gen_str(sample)
    assert generator._proto_info == [("x", "float")]


def test_batches_of_a_generator(monkeypatch, capsys):
    class Padded(fleet.MultiSlotDataGenerator):
        def generate_sample(self, line):
            def samples():
                if line is None:
                    for count in range(1, 4):
                        yield [("x", [count] * count)]
                elif line.strip():
                    yield [("x", [int(word) for word in line.split()])]
                else:
                    yield None

            return samples

        def generate_batch(self, samples):
            sizes.append(len(samples))
            longest = max(len(sample[0][1]) for sample in samples)

            def padded():
                for ((name, ids),) in samples:
                    yield [(name, ids + [0] * (longest - len(ids)))]

            return padded

    sizes = []
    generator = Padded()
    generator.set_batch(2)
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n2 3\n\n4\n"))
    generator.run_from_stdin()
    assert capsys.readouterr().out == "2 1 0\n2 2 3\n1 4\n" and sizes == [2, 1]
    generator.run_from_memory()
    assert capsys.readouterr().out == "2 1 0\n2 2 2\n3 3 3 3\n"
    with pytest.raises(ValueError, match="batch_size"):
        generator.set_batch(0)
    with pytest.raises(NotImplementedError, match="generate_sample"):
        fleet.MultiSlotDataGenerator().run_from_memory()


# Bad input


def test_wrong_settings(tmp_path, raises, regression):
    x, y, _ = regression
    dataset = InMemoryDataset()

    def init(**settings):
        return lambda: dataset.init(**settings)

    raises(TypeError, ["batchsize", "did you mean 'batch_size'"], init(batchsize=3))
    raises(TypeError, ["merge_size", "_init_distributed_settings"], init(merge_size=2))
    raises(ValueError, ["batch_size", "1 or more"], init(batch_size=0))
    raises(TypeError, ["thread_num", "integer"], init(thread_num="4"))
    raises(TypeError, ["pipe_command", "string"], init(pipe_command=["cat"]))
    raises(NotImplementedError, ["input_type", "pipe_command"], init(input_type=1))
    raises(NotImplementedError, ["fs_name", "download_cmd"], init(fs_name="hdfs://x"))
    raises(TypeError, ["use_var"], init(use_var=x))
    raises(TypeError, ["use_var"], init(use_var=["x"]))
    wrong = static.data("flags", [None, 1], "int32")
    raises(ValueError, ["'flags'", "int64 or float32", "i32"], init(use_var=[wrong]))
    unknown = static.data("image", [None, -1, 4])
    raises(ValueError, ["'image'", "unknown size"], init(use_var=[unknown]))
    with pytest.warns(UserWarning, match="queue_num has no effect"):
        dataset.init(queue_num=4)
    with pytest.warns(UserWarning, match="fleet_send_batch_size"):
        dataset._init_distributed_settings(fleet_send_batch_size=1)
    raises(
        NotImplementedError, ["merge_size"], lambda: dataset._init_distributed_settings(merge_size=2)
    )


def test_use_before_the_data_is_there(exe, tmp_path, raises, regression):
    x, y, _ = regression
    exe.run(static.default_startup_program())
    dataset = InMemoryDataset()
    raises(RuntimeError, ["no inputs", "init"], dataset.load_into_memory)
    dataset.init(use_var=[x, y])
    raises(ValueError, ["no files", "set_filelist"], dataset.load_into_memory)
    raises(ValueError, ["preload_into_memory"], dataset.wait_preload_done)
    for call in [
        dataset.local_shuffle,
        dataset.global_shuffle,
        lambda: list(dataset),
        lambda: exe.train_from_dataset(dataset=dataset),
    ]:
        raises(ValueError, ["no records in memory", "load_into_memory"], call)
    queue = QueueDataset()
    queue.init(use_var=[x, y])
    raises(ValueError, ["no files"], lambda: exe.train_from_dataset(dataset=queue))
    assert not hasattr(queue, "local_shuffle") and not hasattr(queue, "load_into_memory")
    raises(TypeError, ["list of files"], lambda: queue.set_filelist("part-0"))
    missing = str(tmp_path / "no_such_part")
    raises((ValueError, RuntimeError), [missing], lambda: queue.set_filelist([missing]))
    dataset.set_filelist([write(tmp_path / "part", 3)])
    dataset.load_into_memory()
    raises(ValueError, ["unknown slot 'z'"], lambda: dataset.slots_shuffle(["z"]))
    raises(TypeError, ["fleet"], lambda: dataset.get_memory_data_size("fleet"))


def test_wrong_lines_name_file_line_and_column(tmp_path, raises, regression):
    x, y, _ = regression
    path = tmp_path / "part"
    path.write_text("2 1 1 1 3\n3 1 1 1 1 3\n")
    dataset = QueueDataset()
    dataset.init(use_var=[x, y])
    dataset.set_filelist([path])
    raises(ValueError, [f"{path}:2:1", "'x'"], lambda: list(dataset))


# Tables


def table_inputs():
    return [static.data("dense", [None, 2]), static.data("label", [None, 1], "int64")]


def columns(count=5):
    ages = np.arange(count, dtype="float64")
    return {"age": ages, "price": ages / 2, "label": (ages % 2).astype("int32")}


@pytest.fixture(params=["dict", "pandas", "pyarrow"])
def make_table(request):
    if request.param == "dict":
        return dict
    library = pytest.importorskip(request.param)
    return library.DataFrame if request.param == "pandas" else library.table


def test_a_table_is_a_dataset(exe, make_table):
    dense, label = table_inputs()
    where = {"dense": ["age", "price"]}
    dataset = package.io.from_table(
        make_table(columns()), [dense, label], batch_size=2, columns=where
    )
    assert len(dataset) == 3
    batches = list(dataset)
    assert batches[1]["dense"].tolist() == [[2, 1], [3, 1.5]]
    assert batches[2]["label"].tolist() == [[0]] and batches[0]["label"].dtype == "int64"
    total = package.sum(dense)
    counted = []

    class Counter(static.FetchHandler):
        def handler(self, res_dict):
            counted.append(res_dict["total"].item())

    exe.train_from_dataset(dataset=dataset, fetch_handler=Counter({"total": total}, 0))
    assert counted == [1.5, 7.5, 6.0]


def test_shuffles_of_a_table():
    dense, label = table_inputs()
    dataset = package.io.from_table(
        columns(20), [label], batch_size=20, shuffle=True, columns={"label": "age"}
    )
    first, second = (next(iter(dataset))["label"].ravel().tolist() for _ in range(2))
    assert first != second and sorted(first) == sorted(second) == list(range(20))
    whole = package.io.from_table(columns(5), [label], batch_size=2, drop_last=True)
    assert len(whole) == len(list(whole)) == 2


def test_columns_of_lists(make_table):
    image = static.data("image", [None, 2, 2])
    rows = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    dataset = package.io.from_table(make_table({"image": rows}), [image], batch_size=2)
    (batch,) = dataset
    assert batch["image"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    ragged = make_table({"image": [[1.0, 2.0, 3.0, 4.0], [5.0]]})
    with pytest.raises(ValueError, match="column 'image', row 1"):
        package.io.from_table(ragged, [image])


def test_wrong_tables(make_table, raises):
    dense, label = table_inputs()

    def call(table, inputs=[label], **arguments):
        return lambda: package.io.from_table(make_table(table), inputs, **arguments)

    raises(ValueError, ["no column 'label'", "did you mean 'lable'"], call({"lable": [1]}))
    raises(ValueError, ["column 'label', row 0", "numbers of int64"], call({"label": ["b", "a"]}))
    raises(ValueError, ["column 'label', row 2", "2.5"], call({"label": [0.0, 1.0, 2.5]}))
    raises(ValueError, ["'dense'", "[2]"], call({"dense": [0.0, 1.0]}, [dense]))
    raises(ValueError, ["columns", "'x'"], call({"label": [1]}, columns={"x": "label"}))
    raises(ValueError, ["batch_size"], call({"label": [1]}, batch_size=0))
    if make_table is not dict:
        missing = {"label": [1, None, 3]}
        raises(ValueError, ["column 'label', row 1 has no value"], call(missing))
    raises(TypeError, ["table"], lambda: package.io.from_table([1], [label]))


# Arguments of any kind


@pytest.mark.filterwarnings("ignore")
def test_any_argument_gives_an_ordinary_exception(tmp_path, regression):
    x, y, _ = regression
    path = write(tmp_path / "part", 3)
    rng = random.Random(2)
    values = [*VALUES, x, [x], [y, x], [path], path]
    passes = 0
    for name in ["use_var", "batch_size", "thread_num", "seed", "drop_last", "download_cmd"]:
        for value in values:
            dataset = rng.choice([InMemoryDataset, QueueDataset])()
            try:
                dataset.init(**{"use_var": [x, y], name: value})
                dataset.set_filelist([path])
                if isinstance(dataset, InMemoryDataset):
                    dataset.load_into_memory(value)
                passes += len(list(dataset)) > 0
            except ORDINARY:
                pass
    assert passes > 10
    for value in values:
        for call in [
            lambda: dataset.set_filelist(value),
            lambda: dataset.set_filelist([value]),
            lambda: dataset.set_date(value),
            lambda: package.io.from_table({"x": value}, [x]),
            lambda: package.io.from_table(value, [x]),
            lambda: package.io.from_table({"x": [[1, 2]]}, [x], batch_size=value),
            lambda: list(package.io.from_torch([value], [x])),
            lambda: fluid.DataFeeder([x, y]).feed([(value, [1.0])]),
            lambda: fleet.MultiSlotDataGenerator()._gen_str([("x", [value])]),
            lambda: fleet.MultiSlotDataGenerator()._gen_str(value),
        ]:
            try:
                call()
            except (*ORDINARY, NotImplementedError):
                pass


# The documentation


def test_the_examples_of_the_documentation(tmp_path):
    page = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "python.md")
    with open(page, encoding="utf-8") as file:
        text = file.read()
    section = text[text.index("\n## Datasets and loaders") :]
    section = section[: section.index("\n## ", 1)]
    blocks = [block.split("```")[0] for block in section.split("```python\n")[1:]]
    names = [block.splitlines()[0][2:] for block in blocks]
    assert names == ["my_generator.py", "train.py", "loader.py", "samples.py", "table.py"]
    for name, block in zip(names, blocks):
        (tmp_path / name).write_text(block)
    # The search path of the pipe command has this interpreter first.
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    for name in names[1:]:
        ran = subprocess.run(
            [sys.executable, name],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            timeout=120,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        if name == "train.py":
            assert "batch 5, loss: " in ran.stdout and "100 records" in ran.stdout
