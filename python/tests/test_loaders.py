"""Loaders: batches from generators, in both ways of use, and functions of readers."""

import gc
import threading
import traceback

import numpy as np
import pytest

import fleet as package
from fleet import fluid, static
from fleet.io import DataLoader, from_torch
from fleet.nn import functional as F


@pytest.fixture
def inputs():
    return [static.data("x", [None, 2]), static.data("label", [None, 1], "int64")]


def samples(count=5):
    for n in range(count):
        yield np.array([n, n + 0.5]), n % 2


def loader(inputs, reader=samples, batch_size=2, drop_last=False, **arguments):
    made = DataLoader.from_generator(feed_list=inputs, capacity=4, **arguments)
    return made.set_sample_generator(reader, batch_size=batch_size, drop_last=drop_last)


@pytest.mark.parametrize("use_double_buffer", [True, False])
def test_samples_become_batches(exe, inputs, use_double_buffer):
    made = loader(inputs, use_double_buffer=use_double_buffer)
    total = package.sum(inputs[0])
    for _ in range(2):
        batches = list(made())
        assert [len(batch["x"]) for batch in batches] == [2, 2, 1]
        assert batches[1]["x"].tolist() == [[2, 2.5], [3, 3.5]]
        assert batches[1]["x"].dtype == "float32"
        assert batches[1]["label"].tolist() == [[0], [1]]
        assert exe.run(feed=batches[0], fetch_list=[total])[0].tolist() == [3.0]
        assert exe.run(feed=[batches[0]], fetch_list=[total])[0].tolist() == [3.0]
    assert [len(batch["x"]) for batch in loader(inputs, drop_last=True)] == [2, 2]


def test_lists_and_batches(inputs):
    made = DataLoader.from_generator(feed_list=inputs, capacity=4, return_list=True)
    made.set_sample_list_generator(package.batch(samples, 3), package.CPUPlace())
    assert [[part.shape for part in batch] for batch in made] == [
        [(3, 2), (3, 1)],
        [(2, 2), (2, 1)],
    ]

    def whole():
        yield np.zeros((4, 2), "float32"), np.zeros((4, 1), "int64")
        yield {"label": [[1]], "x": [[1.0, 2.0]]}

    made.set_batch_generator(whole)
    assert [batch[0].shape for batch in made] == [(4, 2), (1, 2)]
    made.set_sample_list_generator([list(samples(2))])
    assert [batch[0].shape for batch in made] == [batch[0].shape for batch in made] == [(2, 2)]
    free = DataLoader.from_generator(return_list=True)
    free.set_sample_generator(samples, 5)
    ((x, label),) = free
    assert x.shape == (5, 2) and label.shape == (5,)


def test_a_started_loader_feeds_the_executor(exe, inputs):
    x, label = inputs
    made = loader(inputs, iterable=False)
    total, count = package.sum(x), package.sum(label.astype("float32"))
    test = static.default_main_program().clone(for_test=True)
    exe.run(static.default_startup_program())
    for program in [None, test]:
        made.start()
        exe.run(static.default_startup_program())
        totals = []
        with pytest.raises(package.core.EOFException):
            while True:
                totals.append(exe.run(program, fetch_list=[total])[0].tolist()[0])
        assert totals == [3.0, 11.0, 8.5]
        with pytest.raises(fluid.core.EOFException):
            exe.run(program, fetch_list=[total])
        made.reset()
    made.start()
    feed = {"x": np.ones((1, 2), "float32"), "label": np.ones((1, 1), "int64")}
    assert exe.run(feed=feed, fetch_list=[count])[0].tolist() == [1.0]
    assert exe.run(fetch_list=[total])[0].tolist() == [3.0]
    made.reset()
    made.reset()


def test_the_loader_of_the_program_comes_first(exe):
    results = []
    programs = []
    for start in [0, 100]:
        main = static.Program()
        with static.program_guard(main, static.Program()):
            x = static.data("x", [None, 1])
            made = DataLoader.from_generator(feed_list=[x], capacity=2, iterable=False)
            made.set_sample_generator(lambda start=start: ([n] for n in range(start, start + 3)), 1)
            made.start()
            programs.append((main, x, made))
    for main, x, _ in programs + programs:
        results.append(float(exe.run(main, fetch_list=[x])[0][0, 0]))
    for _, _, made in programs:
        made.reset()
    assert results == [0, 100, 1, 101]


def test_py_reader(exe):
    reader = fluid.layers.py_reader(4, [[-1, 2], [-1, 1]], ["float32", "int64"])
    x, label = fluid.layers.read_file(reader)
    reader.decorate_paddle_reader(package.batch(samples, 2))
    total = package.sum(x)
    reader.start()
    assert exe.run(fetch_list=[total])[0].tolist() == [3.0]
    reader.reset()
    other = fluid.io.PyReader([x, label], capacity=2)
    other.decorate_sample_generator(samples, 5)
    assert [batch[x.name].shape for batch in other()] == [(5, 2)]


def test_training_from_a_loader(exe, capsys):
    x, y = static.data("x", [None, 2]), static.data("y", [None, 1])
    loss = F.mse_loss(static.nn.fc(x, 1), y)
    package.optimizer.SGD(0.1).minimize(loss)
    exe.run(static.default_startup_program())

    def reader():
        for n in range(32):
            yield [n / 32, 1.0], [n / 16 - 1]

    made = loader([x, y], reader, batch_size=8)
    for _ in range(100):
        exe.train_from_dataset(dataset=made, fetch_list=[loss], fetch_info=["loss"], print_period=4)
    assert float(capsys.readouterr().out.splitlines()[-1].split(": ")[1]) < 0.01

    def broken():
        yield from reader()
        raise KeyError("in the generator")

    with pytest.raises(KeyError, match="in the generator"):
        exe.train_from_dataset(dataset=loader([x, y], broken, batch_size=8))


def test_data_feeder(exe, inputs):
    feeder = fluid.DataFeeder(feed_list=["x", inputs[1]], place=fluid.CPUPlace())
    feed = feeder.feed([([1, 2], 0), (np.array([3.0, 4.0]), [1])])
    assert feed["x"].tolist() == [[1, 2], [3, 4]] and feed["label"].tolist() == [[0], [1]]
    reader = feeder.decorate_reader(package.batch(samples, 2))
    assert [len(feed["x"]) for feed in reader()] == [2, 2, 1]
    words = static.data("words", [None, 1], "int64", lod_level=1)
    feed = fluid.DataFeeder([words]).feed([([1, 2, 3],), ([4],)])
    assert feed["words"].tolist() == [[1], [2], [3], [4]]


# Bad input


@pytest.mark.parametrize("use_double_buffer", [True, False])
def test_a_generator_that_raises(exe, inputs, use_double_buffer):
    def broken():
        yield [0, 0], 0
        raise KeyError("no such word")

    for iterable in [True, False]:
        made = loader(
            inputs, broken, 1, iterable=iterable, use_double_buffer=use_double_buffer
        )
        seen = []
        with pytest.raises(KeyError, match="no such word") as caught:
            if iterable:
                for batch in made:
                    seen.append(batch)
            else:
                made.start()
                while True:
                    exe.run()
                    seen.append(1)
        assert len(seen) == 1
        assert "in broken" in "".join(traceback.format_tb(caught.value.__traceback__))
        if not iterable:
            made.reset()


def test_generators_without_samples(exe, inputs):
    with pytest.raises(ValueError, match="yielded nothing"):
        list(loader(inputs, lambda: []))
    with pytest.raises(ValueError, match="fewer than batch_size=8"):
        list(loader(inputs, batch_size=8, drop_last=True))
    once = samples()
    made = loader(inputs, lambda: once)
    assert len(list(made)) == 3
    with pytest.raises(ValueError, match="new iterator"):
        list(made)
    made = loader(inputs, lambda: iter([]), iterable=False)
    made.start()
    with pytest.raises(ValueError, match="yielded nothing"):
        exe.run()
    made.reset()


@pytest.mark.parametrize(
    "rows, parts",
    [
        ([([1, 2], 0), ([1, 2, 3], 0)], ["row 1 of batch 0", "'x'", "[2]", "[3]"]),
        ([([1, 2, 3], 0), ([1, 2, 3], 0)], ["row 0 of batch 0", "'x'", "[2]", "[3]"]),
        ([([1, 2], 0), ([1, 2], 0, 9)], ["row 1 of batch 0", "expected 2 (x, label)", "got 3"]),
        ([([1, 2], 0), ([1, 2], 0.5)], ["row 1 of batch 0", "'label'", "int64", "0.5"]),
        ([([1, 2], 0), (["a", "b"], 0)], ["row ", "'x'", "numbers of float32"]),
        ([([1, 2], 0), (None, 0)], ["row 1 of batch 0", "'x'", "None"]),
        ([([1, 2], 0), ([1, 2], 2**70)], ["row 1 of batch 0", "'label'"]),
        ([([1, 1e300], 0), ([1, 2], 0)], ["row 0 of batch 0", "'x'", "float32"]),
        ([([1, [2]], 0), ([1, 2], 0)], ["row 0 of batch 0", "'x'"]),
        ([{"x": [1, 2], "label": 0}, {"x": [1, 2]}], ["row 1 of batch 0", "'label'"]),
    ],
)
def test_rows_that_do_not_fit(inputs, raises, rows, parts):
    raises(ValueError, parts, lambda: list(loader(inputs, lambda: rows)))


def test_rows_of_unknown_length(raises):
    x = static.data("x", [None, -1], "int64")
    (batch,) = loader([x], lambda: [([1, 2, 3],), ([4, 5, 6],)])
    assert batch["x"].shape == (2, 3)
    parts = ["row 1 of batch 0", "another shape than row 0", "lod_level"]
    raises(ValueError, parts, lambda: list(loader([x], lambda: [([1, 2],), ([1],)])))


def test_batches_that_do_not_fit(inputs, raises):
    def check(batch, parts):
        made = DataLoader.from_generator(feed_list=inputs, capacity=2)
        made.set_batch_generator(lambda: [batch])
        raises(ValueError, ["batch 0", *parts], lambda: list(made))

    x, label = np.zeros((2, 2), "float32"), np.zeros((2, 1), "int64")
    check([x], ["expected 2 (x, label)", "got 1"])
    check([x.astype("float64"), label], ["'x'", "float32", "float64"])
    check([x, np.zeros(2, "int64")], ["'label'", "[-1, 1]", "[2]"])
    check({"x": x}, ["no input 'label'"])


def test_wrong_calls(inputs, raises):
    make = DataLoader.from_generator
    raises(ValueError, ["feed_list"], lambda: make())
    raises(TypeError, ["feed_list"], lambda: make(feed_list=inputs[0]))
    raises(ValueError, ["capacity"], lambda: make(feed_list=inputs, capacity=0))
    made = make(feed_list=inputs)
    raises(RuntimeError, ["no generator", "set_sample_generator"], lambda: list(made))
    raises(TypeError, ["function"], lambda: made.set_sample_generator(samples(), 2))
    raises(ValueError, ["batch_size"], lambda: made.set_sample_generator(samples, 0))
    raises(RuntimeError, ["iterable"], made.start)
    made.set_sample_generator(lambda: None, 2)
    raises(TypeError, ["must return an iterator"], lambda: list(made))
    made.set_sample_list_generator(samples)
    raises(ValueError, ["row 0 of batch 0"], lambda: list(made))
    other = loader(inputs, iterable=False)
    raises(RuntimeError, ["not iterable"], lambda: list(other))
    other.start()
    raises(RuntimeError, ["already started", "reset"], other.start)
    raises(RuntimeError, ["started"], lambda: other.set_batch_generator(samples))
    other.reset()
    with pytest.warns(UserWarning, match="use_multiprocess"):
        make(feed_list=inputs, use_multiprocess=True)


def test_a_pass_that_is_left_ends_its_thread(inputs):
    ended = threading.Event()

    def endless():
        try:
            while True:
                yield [0, 0], 0
        finally:
            ended.set()

    for _ in loader(inputs, endless):
        break
    gc.collect()
    assert ended.wait(30)


# Sources and readers


class FakeTensor:
    """Behaves as a tensor of torch does."""

    def __init__(self, values):
        self.values = values

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.values


def test_batches_of_tensors(exe, inputs, raises):
    x, label = np.ones((2, 2), "float32"), np.array([0, 1])
    for batch in [(FakeTensor(x), FakeTensor(label)), {"label": label, "x": FakeTensor(x)}]:
        (made,) = from_torch([batch], inputs)
        assert made["x"].shape == (2, 2) and made["label"].tolist() == [[0], [1]]
    exe.train_from_dataset(dataset=from_torch([(x, label)], inputs))
    raises(ValueError, ["batch 0", "expected 2"], lambda: list(from_torch([[x]], inputs)))
    raises(ValueError, ["no input 'x'"], lambda: list(from_torch([{"label": label}], inputs)))
    raises(TypeError, ["loader"], lambda: from_torch(3, inputs))


def test_a_loader_of_torch(inputs):
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.ones(5, 2), torch.arange(5))
    made = from_torch(torch.utils.data.DataLoader(dataset, batch_size=2), inputs)
    assert [batch["label"].ravel().tolist() for batch in made] == [[0, 1], [2, 3], [4]]


def test_readers(raises):
    def numbers():
        return iter(range(6))

    reader = package.reader
    assert list(package.batch(numbers, 4)()) == [[0, 1, 2, 3], [4, 5]]
    assert list(package.batch(numbers, 4, drop_last=True)()) == [[0, 1, 2, 3]]
    shuffled = reader.shuffle(numbers, 3, seed=1)
    first, second = list(shuffled()), list(shuffled())
    assert sorted(first[:3]) == [0, 1, 2] and sorted(second[3:]) == [3, 4, 5]
    assert list(reader.buffered(numbers, 2)()) == list(range(6))
    assert list(reader.firstn(reader.chain(numbers, numbers), 8)()) == [0, 1, 2, 3, 4, 5, 0, 1]
    assert list(reader.map_readers(lambda a, b: a + b, numbers, numbers)())[-1] == 10
    once = numbers()
    kept = reader.cache(lambda: once)
    assert list(kept()) == list(kept()) == list(range(6))
    raises(ValueError, ["batch_size"], lambda: package.batch(numbers, 0))
    assert fluid.io.batch is package.batch


def test_integers_that_a_float_cannot_hold(raises):
    x = static.data("x", [None, 1])
    inexact = ["row 1", "float32", "16777217", "not exact"]
    raises(ValueError, inexact, lambda: package.io.from_table({"x": [1, 16777217]}, [x]))
    loader = DataLoader.from_generator(feed_list=[x], capacity=2)
    loader.set_sample_generator(lambda: iter([(1,), (16777217,)]), batch_size=2)
    raises(ValueError, inexact, lambda: list(loader()))
    masked = np.ma.array([1.0, 2.0], mask=[True, False])
    raises(ValueError, ["'x'", "masked"], lambda: package.io.from_table({"x": masked}, [x]))
    loader.set_sample_generator(lambda: iter([(masked[:1],)]), batch_size=1)
    raises(ValueError, ["'x'", "masked"], lambda: list(loader()))
