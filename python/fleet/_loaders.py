"""Loaders: batches from generators of Python, made ahead of time in a thread."""

import warnings

from fleet import _rows
from fleet._executor import started_loaders
from fleet._prefetch import Prefetch
from fleet.core import EOFException

#: Batches that are kept ready if no capacity is given.
_CAPACITY = 2


class DataLoader:
    """Makes loaders: `DataLoader.from_generator`."""

    def __init__(self, *args, **kwargs):
        raise NotImplementedError(
            "a DataLoader of a map-style dataset is not supported\n  "
            "help: use DataLoader.from_generator, fleet.io.from_table for tables, or "
            "fleet.io.from_torch for a loader of torch"
        )

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


class GeneratorLoader:
    """A loader that `DataLoader.from_generator` has made."""

    def __init__(self, feeds, capacity, iterable, return_list):
        self._feeds = feeds
        self._capacity = capacity
        self._iterable = iterable
        self._return_list = return_list
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

    def _started(self):
        """Returns an iterator over the batches of a new pass, with a method `close`."""
        if self._make is None:
            raise RuntimeError(
                "the loader has no generator\n  help: call set_sample_generator, "
                "set_sample_list_generator or set_batch_generator first"
            )
        return Prefetch(self._make, self._capacity) if self._capacity else self._make()

    def __call__(self) -> "Iterator[Any]":
        return iter(self)

    def __iter__(self) -> "Iterator[Any]":
        if not self._iterable:
            raise RuntimeError(
                "the loader is not iterable\n  "
                "help: call start, run the program without a feed, and call reset at the "
                "EOFException; or make the loader with iterable=True"
            )
        return self._iterate(self._started())

    def _iterate(self, batches):
        try:
            for batch in batches:
                if self._return_list and isinstance(batch, dict):
                    batch = [batch[feed.name] for feed in self._feeds]
                yield batch
        finally:
            batches.close()

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
            "the loader has no more batches\n  help: catch fleet.core.EOFException, and reset it"
        )

    def _source(self):
        """Returns the inputs, and a function that starts an iterator over feeds."""
        if self._feeds is None:
            raise ValueError("the loader has no inputs\n  help: pass feed_list to from_generator")
        return [(feed.name, feed.dtype) for feed in self._feeds], lambda: iter(self._make_all())

    def _make_all(self):
        if self._make is None:
            return self._started()
        return self._make()

    def __repr__(self):
        names = "" if self._feeds is None else ", ".join(feed.name for feed in self._feeds)
        return f"{type(self).__name__}([{names}])"


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
                "multi_devices is not supported\n  "
                "help: use a collective job: fleet.distributed.fleet"
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
