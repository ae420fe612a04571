"""Loaders: batches from generators of Python, made ahead of time in a thread."""

import warnings

from fleet._absent import spelled as _spelled
from fleet import _rows
from fleet._executor import started_loaders
from fleet._prefetch import Prefetch, in_threads, map_closed
from fleet._samplers import BatchSampler, IterableDataset, batched, check_samples, check_size
from fleet.core import EOFException

#: Batches that are kept ready if no capacity is given.
_CAPACITY = 2


class _Loader:
    """What loaders have in common: passes of batches, which ``_make()`` iterates over."""

    def __init__(self, feeds, capacity, return_list):
        self._feeds = feeds
        self._capacity = capacity
        self._return_list = return_list

    def _started(self):
        """Returns an iterator over the batches of a new pass, with a method `close`."""
        make = self._pass()
        return Prefetch(make, self._capacity) if self._capacity else make()

    def __call__(self) -> "Iterator[Any]":
        return iter(self)

    def __iter__(self) -> "Iterator[Any]":
        return self._iterate(self._started())

    def _iterate(self, batches):
        try:
            for batch in batches:
                if self._return_list and self._feeds and isinstance(batch, dict):
                    batch = [batch[feed.name] for feed in self._feeds]
                yield batch
        finally:
            batches.close()

    def _source(self):
        """Returns the inputs, and a function that starts an iterator over feeds."""
        if self._feeds is None:
            raise ValueError(f"the loader has no inputs\n  help: pass feed_list to {self._MAKER}")
        return [(feed.name, feed.dtype) for feed in self._feeds], lambda: iter(self._pass()())

    def __repr__(self):
        names = "" if self._feeds is None else ", ".join(feed.name for feed in self._feeds)
        return f"{type(self).__name__}([{names}])"


class DataLoader(_Loader):
    """Batches of the samples of a `Dataset`; `DataLoader.from_generator` takes a generator.

    * ``dataset``: has ``__getitem__`` and ``__len__``, or is an `IterableDataset`.
    * ``feed_list``: the inputs that the fields of a sample fill, which are converted to their types
      and shapes. Batches are then feeds: dicts by name.
    * ``return_list``: whether batches are lists of arrays instead; without ``feed_list`` they are.
    * ``batch_size``, ``shuffle``, ``drop_last``: how samples become batches; or ``batch_sampler``.
      With ``batch_size=None`` each sample is a batch.
    * ``collate_fn``: returns the arrays of a batch from a list of samples.
    * ``num_workers``: threads that call the dataset. With 0 one thread prepares the batches.
    * ``use_buffer_reader=False``: batches are made when they are needed, unless there are workers.
    * ``prefetch_factor``: batches that are kept ready, for each worker.
    * ``worker_init_fn``: called in each worker with its number.

    ``places``, ``use_shared_memory`` and ``persistent_workers`` have no meaning for threads.
    """

    _MAKER = "DataLoader"

    def __init__(
        self,
        dataset,
        feed_list=None,
        places=None,
        return_list=None,
        batch_sampler=None,
        batch_size: "int | None" = 1,
        shuffle=False,
        drop_last=False,
        collate_fn=None,
        num_workers=0,
        use_buffer_reader=True,
        use_shared_memory=True,
        timeout=0,
        worker_init_fn=None,
        persistent_workers=False,
        prefetch_factor=_CAPACITY,
    ):
        feeds = None if feed_list is None else _rows.feeds("feed_list", feed_list)
        if feeds is None and return_list is False:
            raise ValueError("feed_list: expected a list of variables with return_list=False")
        for name, value, least in [("num_workers", num_workers, 0),
                                   ("prefetch_factor", prefetch_factor, 1)]:
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}: expected {least} or more, got {value!r}")
        for name, value in [("collate_fn", collate_fn), ("worker_init_fn", worker_init_fn)]:
            if value is not None and not callable(value):
                raise TypeError(f"{name}: expected a function, got {value!r}")
        if timeout:
            raise NotImplementedError("timeout is not supported\n  help: leave it out")
        capacity = prefetch_factor * max(num_workers, 1)
        super().__init__(
            feeds,
            capacity if use_buffer_reader or num_workers else 0,
            feeds is None if return_list is None else bool(return_list),
        )
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = bool(drop_last)
        self.num_workers = num_workers
        self._collate = collate_fn
        self._worker_init = worker_init_fn
        self.batch_sampler = self._sampler(batch_sampler, shuffle)

    def _sampler(self, given, shuffle):
        """Returns what gives the numbers of the samples, or None."""
        dataset, size = self.dataset, self.batch_size
        if isinstance(dataset, IterableDataset):
            if shuffle or given is not None:
                raise ValueError(
                    "shuffle and batch_sampler: expected neither for an IterableDataset, which has "
                    "its own order"
                )
            if size is not None:
                check_size(size)
            return None
        check_samples("dataset", dataset)
        if given is not None:
            if size != 1 or shuffle or self.drop_last:
                raise ValueError(
                    "batch_sampler: expected no batch_size, shuffle and drop_last beside it"
                )
            if not hasattr(given, "__iter__"):
                raise TypeError(f"batch_sampler: expected a BatchSampler, got {given!r}")
            return given
        if size is None:
            return BatchSampler(dataset, shuffle=shuffle)
        return BatchSampler(dataset, None, shuffle, size, self.drop_last)

    def __len__(self):
        """Returns the number of batches of a pass."""
        if self.batch_sampler is None:
            raise TypeError("the number of batches of an IterableDataset is not known")
        return len(self.batch_sampler)

    def _pass(self):
        # The order of a pass is drawn in the thread of the caller.
        if self.batch_sampler is None:
            size = 1 if self.batch_size is None else self.batch_size
            parts = batched(iter(self.dataset), size, self.drop_last)
            return lambda: self._made(enumerate(parts), lambda samples: samples)
        parts = iter(self.batch_sampler)
        return lambda: self._made(enumerate(parts), self._read)

    def _read(self, numbers):
        return [self.dataset[number] for number in numbers]

    def _made(self, parts, read):
        """Iterates over the batches of numbered parts."""

        def batch(part):
            return self._batch(read(part[1]), f"batch {part[0]}")

        if not self.num_workers:
            return map_closed(batch, parts)
        return in_threads(batch, parts, self.num_workers, self._worker_init)

    def _batch(self, samples, what):
        if self.batch_size is None:
            (sample,) = samples
            sample = sample if self._collate is None else self._collate(sample)
            return sample if self._feeds is None else _rows.whole(self._feeds, sample, what)
        if self._collate is not None:
            made = self._collate(samples)
            return made if self._feeds is None else _rows.whole(self._feeds, made, what)
        if self._feeds is not None:
            return _rows.stack(self._feeds, samples, what)
        return _collated(samples, what)

    @staticmethod
    def from_generator(
        feed_list=None,
        capacity=None,
        use_double_buffer=True,
        iterable=True,
        return_list=False,
        use_multiprocess=False,
        drop_last=True,
    ):
        """Returns a loader of the inputs ``feed_list``, which needs a generator before it is used.

        * ``capacity``: batches that are kept ready, by a thread.
        * ``use_double_buffer=False``: batches are made when they are needed, without a thread.
        * ``iterable``: whether the loader is iterated over. If not, it has `start` and `reset`, and
          `exe.run` takes its batches while it is started.
        * ``return_list``: whether batches are lists of arrays instead of dicts by name.
        * ``use_multiprocess``: has no effect, with a warning: generators run in a thread.
        * ``drop_last``: has no effect: all batches are for one place.
        """
        if capacity is None:
            capacity = _CAPACITY
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise ValueError(f"capacity: expected 1 or more, got {capacity!r}")
        if use_multiprocess:
            text = "use_multiprocess has no effect: generators run in a thread"
            warnings.warn(text, UserWarning, stacklevel=2)
        if feed_list is None and not (iterable and return_list):
            raise ValueError(
                "feed_list: expected a list of variables, got None\n  "
                "help: a loader without inputs needs iterable=True and return_list=True"
            )
        feeds = None if feed_list is None else _rows.feeds("feed_list", feed_list)
        capacity = capacity if use_double_buffer else 0
        return GeneratorLoader(feeds, capacity, bool(iterable), bool(return_list))


class GeneratorLoader(_Loader):
    """A loader that `DataLoader.from_generator` has made."""

    _MAKER = "from_generator"

    def __init__(self, feeds, capacity, iterable, return_list):
        super().__init__(feeds, capacity, return_list)
        self._iterable = iterable
        self._make = None
        self._batches = None

    def set_sample_generator(self, reader, batch_size, drop_last=True, places=None):
        """Makes batches of the samples that ``reader()`` iterates over: a field for each input.
        Fields are converted to the type and shape of their inputs."""
        _check_reader(reader)
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size: expected 1 or more, got {batch_size!r}")
        return self._set(lambda: _lists(_iterated(reader), batch_size, drop_last), self._stacked)

    def set_sample_list_generator(self, reader, places=None):
        """Makes batches of the lists of samples that ``reader()`` iterates over, such as
        ``fleet.batch(reader, batch_size)``."""
        _check_reader(reader)
        return self._set(lambda: _iterated(reader), self._stacked)

    def set_batch_generator(self, reader, places=None):
        """Uses the batches that ``reader()`` iterates over: an array for each input, of its type
        and shape."""
        _check_reader(reader)
        return self._set(lambda: _iterated(reader), self._whole)

    def _set(self, items, batch_of):
        if self._batches is not None:
            raise RuntimeError("the loader is started\n  help: call reset first")

        def batches():
            count = -1
            for count, item in enumerate(items()):
                yield batch_of(item, f"batch {count}")
            if count < 0:
                raise ValueError(
                    "the generator has yielded nothing\n  "
                    "help: the reader is called for each pass, and must return a new iterator"
                )

        self._make = batches
        return self

    def _stacked(self, samples, what):
        if not isinstance(samples, (list, tuple)):
            raise TypeError(f"{what}: expected a list of samples, got {_rows.short(samples)}")
        if self._feeds is not None:
            return _rows.stack(self._feeds, samples, what)
        import numpy as np

        return [np.asarray(column) for column in zip(*samples)]

    def _whole(self, batch, what):
        if self._feeds is not None:
            return _rows.whole(self._feeds, batch, what)
        return list(batch) if isinstance(batch, (list, tuple)) else [batch]

    def _pass(self):
        if self._make is None:
            raise RuntimeError(
                "the loader has no generator\n  help: call set_sample_generator, "
                "set_sample_list_generator or set_batch_generator first"
            )
        return self._make

    def __iter__(self) -> "Iterator[Any]":
        if not self._iterable:
            raise RuntimeError(
                "the loader is not iterable\n  "
                "help: call start, run the program without a feed, and call reset at the "
                "EOFException; or make the loader with iterable=True"
            )
        return super().__iter__()

    def start(self):
        """Starts a pass, whose batches `exe.run` takes."""
        if self._iterable:
            raise RuntimeError(
                "the loader is iterable\n  help: iterate over it, or make it with iterable=False"
            )
        if self._batches is not None:
            raise RuntimeError(
                "the loader is already started\n  help: call reset first, also at the EOFException"
            )
        self._batches = self._started()
        started_loaders.append(self)

    def reset(self):
        """Ends the pass at any point."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None
            started_loaders.remove(self)

    def _fits(self, program, feed):
        """Returns whether the loader fills inputs of a program that are not fed."""
        names = [feed.name for feed in self._feeds]
        return not any(name in feed for name in names) and all(map(program.has_var, names))

    def _belongs_to(self, program):
        return self._feeds[0].program is program

    def _next_feed(self):
        for batch in self._batches:
            return batch
        raise EOFException(
            _spelled(
                "the loader has no more batches\n  "
                "help: catch fleet.core.EOFException, and reset it"
            )
        )


class PyReader(GeneratorLoader):
    """The loader of the 1.x interface: ``fluid.io.PyReader``."""

    def __init__(
        self,
        feed_list=None,
        capacity=None,
        use_double_buffer=True,
        iterable=True,
        return_list=False,
    ):
        made = DataLoader.from_generator(
            feed_list, capacity, use_double_buffer, iterable, return_list
        )
        super().__init__(made._feeds, made._capacity, made._iterable, made._return_list)

    def decorate_sample_generator(self, sample_generator, batch_size, drop_last=True, places=None):
        """Calls `set_sample_generator`."""
        self.set_sample_generator(sample_generator, batch_size, drop_last, places)

    def decorate_sample_list_generator(self, reader, places=None):
        """Calls `set_sample_list_generator`."""
        self.set_sample_list_generator(reader, places)

    def decorate_batch_generator(self, reader, places=None):
        """Calls `set_batch_generator`."""
        self.set_batch_generator(reader, places)

    # The names that readers of `fluid.layers.py_reader` have.
    decorate_paddle_reader = decorate_sample_list_generator
    decorate_tensor_provider = decorate_batch_generator


class DataFeeder:
    """Makes feeds of lists of samples: ``exe.run(feed=feeder.feed(samples))``."""

    def __init__(self, feed_list, place=None, program=None):
        self._feeds = _rows.feeds("feed_list", feed_list, program)

    def feed(self, iterable):
        """Returns the feed of a list of samples, which have a field for each input."""
        return _rows.stack(self._feeds, list(iterable))

    def decorate_reader(self, reader, multi_devices=False, num_places=None, drop_last=True):
        """Returns a reader of feeds, from a reader of lists of samples."""
        if multi_devices:
            raise NotImplementedError(
                _spelled(
                    "multi_devices is not supported\n  "
                    "help: use a collective job: fleet.distributed.fleet"
                )
            )

        def feeds():
            for samples in reader():
                yield self.feed(samples)

        return feeds


def _check_reader(reader):
    # An iterator has one pass only.
    if not callable(reader) and (hasattr(reader, "__next__") or not hasattr(reader, "__iter__")):
        raise TypeError(
            f"reader: expected a function that returns an iterator, got {_rows.short(reader)}\n  "
            "help: pass the generator function itself, not what it returns"
        )


def _iterated(reader):
    items = reader() if callable(reader) else reader
    if not hasattr(items, "__iter__"):
        raise TypeError(f"the reader must return an iterator, got {_rows.short(items)}")
    return iter(items)


def _collated(samples, what):
    """Returns a list of the stacked arrays of each field; a dict for samples that are dicts."""
    import numpy as np

    def stacked(values, field):
        try:
            array = np.asarray(values)
        except ValueError:
            array = None
        if array is None or array.dtype == object:
            raise ValueError(
                f"{what}: field {field!r}: expected arrays of one shape in all samples\n  "
                "help: pad them, or pass collate_fn"
            )
        return array

    first = samples[0]
    if isinstance(first, dict):
        return {name: stacked([sample[name] for sample in samples], name) for name in first}
    rows = [sample if isinstance(sample, (list, tuple)) else [sample] for sample in samples]
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"{what}: expected the same number of fields in all samples")
    return [stacked(column, field) for field, column in enumerate(zip(*rows))]


def _lists(samples, batch_size, drop_last):
    batch, whole = [], False
    for sample in samples:
        batch.append(sample)
        if len(batch) == batch_size:
            yield batch
            batch, whole = [], True
    if batch and not drop_last:
        yield batch
    elif batch and not whole:
        raise ValueError(
            f"the generator has yielded {len(batch)} samples, fewer than batch_size={batch_size}, "
            "and drop_last drops them\n  help: pass drop_last=False"
        )
