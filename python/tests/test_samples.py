"""Loaders of datasets in Python: samples by number, samplers, and worker threads."""

import threading

import numpy as np
import pytest

import fleet
from fleet import io, static
from fleet.nn import functional as F


class Points(io.Dataset):
    """Points in two classes, as float64 and plain integers."""

    def __init__(self, count=10):
        self.count = count
        self.threads = set()

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        self.threads.add(threading.current_thread().name)
        label = index % 2
        return np.array([label * 2.0 - 1.0, index / self.count]), label

    def __len__(self):
        return self.count


class Stream(io.IterableDataset):
    def __iter__(self):
        return iter([(np.full(2, n), n) for n in range(5)])


@pytest.fixture
def inputs():
    return [static.data("x", [None, 2]), static.data("label", [None, 1], "int64")]


def labels(loader):
    return [batch["label"].ravel().tolist() for batch in loader]


def test_batches_are_feeds_of_the_inputs(inputs):
    loader = io.DataLoader(Points(5), inputs, batch_size=2)
    batches = list(loader())
    assert len(loader) == 3 and [len(batch["x"]) for batch in batches] == [2, 2, 1]
    assert batches[0]["x"].dtype == np.float32 and batches[0]["label"].tolist() == [[0], [1]]
    assert len(io.DataLoader(Points(5), inputs, batch_size=2, drop_last=True)) == 2
    assert labels(io.DataLoader(Points(5), inputs, batch_size=4, drop_last=True)) == [[0, 1, 0, 1]]
    listed = io.DataLoader(Points(5), inputs, batch_size=5, return_list=True)
    ((x, label),) = list(listed)
    assert x.shape == (5, 2) and label.shape == (5, 1)


def test_batches_without_inputs_are_lists():
    ((x, label),) = list(io.DataLoader(Points(4), batch_size=4))
    assert x.dtype == np.float64 and x.shape == (4, 2) and label.tolist() == [0, 1, 0, 1]
    (named,) = list(io.DataLoader([{"a": 1, "b": [2, 3]}] * 2, batch_size=2))
    assert named["a"].tolist() == [1, 1] and named["b"].shape == (2, 2)
    assert len(list(io.DataLoader(Points(3), batch_size=None))) == 3


def test_a_shuffled_pass_has_all_samples_and_follows_the_seed(inputs):
    loader = io.DataLoader(list(enumerate_pairs(20)), inputs, batch_size=6, shuffle=True)
    np.random.seed(3)
    first, second = labels(loader), labels(loader)
    np.random.seed(3)
    assert labels(loader) == first and first != second
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(20))


def enumerate_pairs(count):
    return ((np.zeros(2), n) for n in range(count))


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_are_threads_and_keep_the_order(inputs, workers):
    begun = []
    data = Points(40)
    arguments = {"num_workers": workers, "worker_init_fn": begun.append}
    loader = io.DataLoader(data, inputs, batch_size=4, **arguments)
    assert labels(loader) == [[0, 1, 0, 1]] * 10
    assert 1 <= len(begun) <= workers and begun == sorted(begun)
    assert all(name.startswith("fleet-loader-worker") for name in data.threads)
    for batch in loader:
        # A pass that ends early leaves nothing behind that the next one needs.
        break
    assert len(labels(loader)) == 10


def test_an_iterable_dataset(inputs):
    assert labels(io.DataLoader(Stream(), inputs, batch_size=2)) == [[0, 1], [2, 3], [4]]
    dropped = io.DataLoader(Stream(), inputs, batch_size=2, drop_last=True, num_workers=2)
    assert labels(dropped) == [[0, 1], [2, 3]]


def test_samplers(inputs):
    by_hand = io.BatchSampler(sampler=[4, 2, 0], batch_size=2)
    assert list(by_hand) == [[4, 2], [0]] and len(by_hand) == 2
    pairs = list(enumerate_pairs(6))
    assert labels(io.DataLoader(pairs, inputs, batch_sampler=by_hand)) == [[4, 2], [0]]
    assert labels(io.DataLoader(pairs, inputs, batch_sampler=[[5], [1, 1]])) == [[5], [1, 1]]


def test_workers_of_a_job_read_different_parts():
    data = Points(11)
    parts = [io.DistributedBatchSampler(data, 2, num_replicas=3, rank=rank) for rank in range(3)]
    found = [sum(part, []) for part in parts]
    assert [len(part) for part in parts] == [2] * 3 and {len(part) for part in found} == {4}
    assert set(sum(found, [])) == set(range(11))
    shuffled = io.DistributedBatchSampler(data, 2, 3, 1, shuffle=True)
    first, second = list(shuffled), list(shuffled)
    shuffled.set_epoch(0)
    assert list(shuffled) == first != second
    # Outside of a job there is one worker.
    assert sum(io.DistributedBatchSampler(data, 4), []) == list(range(11))
    many = [io.DistributedBatchSampler(Points(1), 1, 3, rank) for rank in range(3)]
    assert [list(part) for part in many] == [[[0]]] * 3


def test_collate_fn(inputs):
    def collated(samples):
        return [np.stack([x for x, _ in samples]).astype("float32"),
                np.array([[label] for _, label in samples])]

    loader = io.DataLoader(Points(4), inputs, batch_size=2, collate_fn=collated)
    assert labels(loader) == [[0, 1], [0, 1]]
    assert list(io.DataLoader(Points(4), batch_size=4, collate_fn=len)) == [4]


def test_a_classifier_trains(exe, inputs):
    x, label = inputs
    logits = static.nn.fc(x, 2)
    loss = F.cross_entropy(logits, label)
    accuracy = static.accuracy(F.softmax(logits), label)
    fleet.optimizer.SGD(0.5).minimize(loss)
    exe.run(static.default_startup_program())
    loader = io.DataLoader(Points(64), inputs, batch_size=8, shuffle=True, num_workers=2)
    for _ in range(4):
        for feed in loader():
            exe.run(feed=feed, fetch_list=[loss])
    exe.train_from_dataset(dataset=loader)
    whole = next(iter(io.DataLoader(Points(64), inputs, batch_size=64)))
    test = static.default_main_program().clone(for_test=True)
    assert exe.run(test, feed=whole, fetch_list=[accuracy])[0].item() == 1.0


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_a_sample_is_raised_where_its_batch_is_used(inputs, workers):
    class Broken(Points):
        def __getitem__(self, index):
            if index == 5:
                raise KeyError("broken")
            return super().__getitem__(index)

    found = []
    with pytest.raises(KeyError, match="broken"):
        for batch in io.DataLoader(Broken(8), inputs, batch_size=2, num_workers=workers):
            found.append(batch)
    assert len(found) == 2


@pytest.mark.parametrize(
    "kind, parts, arguments",
    [
        (TypeError, ["dataset", "__len__"], {"dataset": 3}),
        (ValueError, ["batch_size", "0"], {"batch_size": 0}),
        (ValueError, ["num_workers", "-1"], {"num_workers": -1}),
        (TypeError, ["collate_fn"], {"collate_fn": 1}),
        (ValueError, ["feed_list", "return_list"], {"return_list": False}),
        (ValueError, ["batch_sampler", "shuffle"], {"batch_sampler": [[0]], "shuffle": True}),
        (TypeError, ["batch_sampler", "4"], {"batch_sampler": 4}),
        (ValueError, ["IterableDataset"], {"dataset": Stream(), "shuffle": True}),
        (NotImplementedError, ["timeout"], {"timeout": 3}),
        (TypeError, ["feed_list"], {"feed_list": 3}),
        (ValueError, ["prefetch_factor"], {"prefetch_factor": 0}),
    ],
)
def test_wrong_arguments_of_a_loader(raises, kind, parts, arguments):
    raises(kind, parts, lambda: io.DataLoader(**{"dataset": Points(), **arguments}))


def test_wrong_samples_and_samplers(inputs, raises):
    ragged = [(np.zeros(2), 0), (np.zeros(3), 1)]
    def read(data, *feeds):
        return lambda: list(io.DataLoader(data, *feeds, batch_size=2))

    raises(ValueError, ["row 1 of batch 0", "'x'", "[2]", "[3]"], read(ragged, inputs))
    raises(ValueError, ["batch 0", "field 0", "one shape"], read(ragged))
    raises(ValueError, ["batch 0", "number of fields"], read([(1, 2), (1,)]))
    raises(ValueError, ["inputs", "feed_list"], lambda: io.DataLoader(ragged)._source())
    raises(TypeError, ["IterableDataset"], lambda: len(io.DataLoader(Stream())))
    raises(ValueError, ["either"], lambda: io.BatchSampler())
    raises(ValueError, ["shuffle"], lambda: io.BatchSampler(sampler=[1], shuffle=True))
    raises(TypeError, ["sampler"], lambda: io.BatchSampler(sampler=1))
    raises(ValueError, ["rank", "3"], lambda: io.DistributedBatchSampler(Points(), 1, 3, 3))
    raises(ValueError, ["num_replicas"], lambda: io.DistributedBatchSampler(Points(), 1, 0))
    raises(NotImplementedError, ["__getitem__"], lambda: io.Dataset()[0])
