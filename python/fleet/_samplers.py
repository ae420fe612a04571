"""Datasets of samples in Python, and the order in which loaders read them."""

import math


class Dataset:
    """Samples by number. Subclasses define ``__getitem__`` and ``__len__``."""

    def __getitem__(self, index: "int") -> "Any":
        raise NotImplementedError(f"{type(self).__name__} does not define __getitem__")

    def __len__(self):
        raise NotImplementedError(f"{type(self).__name__} does not define __len__")


class IterableDataset:
    """Samples in the order of an iterator. Subclasses define ``__iter__``."""

    def __iter__(self) -> "Iterator[Any]":
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__")


class BatchSampler:
    """The numbers of the samples of each batch.

    They are those of ``dataset`` in order, or shuffled for each pass by the generator of
    ``np.random.seed``; or those that ``sampler`` iterates over.
    """

    def __init__(self, dataset=None, sampler=None, shuffle=False, batch_size=1, drop_last=False):
        if (dataset is None) == (sampler is None):
            raise ValueError("BatchSampler(): expected either dataset or sampler")
        if dataset is not None:
            check_samples("dataset", dataset)
        elif not hasattr(sampler, "__iter__"):
            raise TypeError(f"sampler: expected an iterable of numbers, got {sampler!r}")
        elif shuffle:
            raise ValueError("shuffle: expected False with a sampler, which has its own order")
        check_size(batch_size)
        self.dataset = dataset
        self.sampler = sampler
        self.shuffle = bool(shuffle)
        self.batch_size = batch_size
        self.drop_last = bool(drop_last)

    def _order(self):
        """Returns the numbers of a pass."""
        if self.sampler is not None:
            return self.sampler
        if not self.shuffle:
            return range(len(self.dataset))
        import numpy as np

        return np.random.permutation(len(self.dataset)).tolist()

    def __iter__(self) -> "Iterator[list[int]]":
        # The order is known now, in the thread of the caller, and not when the first is read.
        return batched(iter(self._order()), self.batch_size, self.drop_last)

    def _count(self):
        return len(self.dataset if self.sampler is None else self.sampler)

    def __len__(self):
        """Returns the number of batches of a pass."""
        count = self._count()
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


class DistributedBatchSampler(BatchSampler):
    """The numbers of the samples of this worker: every worker has another part of the dataset.

    All workers have the same number of samples: some are in two parts if the dataset is not
    divisible. With ``shuffle``, `set_epoch` selects the order; it counts the passes by itself.
    """

    def __init__(
        self,
        dataset,
        batch_size,
        num_replicas=None,
        rank=None,
        shuffle=False,
        drop_last=False,
    ):
        super().__init__(dataset, None, shuffle, batch_size, drop_last)
        from fleet import distributed

        self.nranks = distributed.get_world_size() if num_replicas is None else num_replicas
        self.local_rank = distributed.get_rank() if rank is None else rank
        for name, value, least in [("num_replicas", self.nranks, 1), ("rank", self.local_rank, 0)]:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}: expected {least} or more, got {value!r}")
        if self.local_rank >= self.nranks:
            raise ValueError(f"rank: expected less than {self.nranks}, got {self.local_rank}")
        self.epoch = 0

    def set_epoch(self, epoch):
        """Sets the number of the next pass, which selects its order."""
        self.epoch = epoch

    def _order(self):
        import numpy as np

        count = len(self.dataset)
        order = np.arange(count)
        if self.shuffle:
            np.random.RandomState(self.epoch).shuffle(order)
            self.epoch += 1
        return np.resize(order, self._count() * self.nranks if count else 0)[
            self.local_rank :: self.nranks
        ].tolist()

    def _count(self):
        return math.ceil(len(self.dataset) / self.nranks)


def batched(items, size, drop_last):
    """Iterates over lists of ``size`` items."""
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch and not drop_last:
        yield batch


def check_samples(what, dataset):
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise TypeError(
            f"{what}: expected a Dataset, which has __getitem__ and __len__, got {dataset!r}"
        )


def check_size(batch_size):
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size: expected 1 or more, got {batch_size!r}")
