"""Functions of readers: ``fleet.reader``. A reader is a function that returns an iterator."""

import itertools

from fleet._absent import absent as _absent
from fleet._prefetch import Prefetch


def batch(reader, batch_size, drop_last=False):
    """Returns a reader of lists of ``batch_size`` samples."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size: expected 1 or more, got {batch_size!r}")

    def batches():
        made = []
        for sample in reader():
            made.append(sample)
            if len(made) == batch_size:
                yield made
                made = []
        if made and not drop_last:
            yield made

    return batches


def shuffle(reader, buf_size, seed=None):
    """Returns a reader that shuffles each ``buf_size`` samples among themselves."""
    numbers = None

    def shuffled():
        nonlocal numbers
        if numbers is None:
            import random

            numbers = random.Random(seed)
        samples = iter(reader())
        while True:
            part = list(itertools.islice(samples, buf_size))
            if not part:
                return
            numbers.shuffle(part)
            yield from part

    return shuffled


def buffered(reader, size):
    """Returns a reader that reads up to ``size`` samples ahead, in a thread."""

    def read():
        samples = Prefetch(lambda: iter(reader()), size)
        try:
            yield from samples
        finally:
            samples.close()

    return read


def map_readers(func, *readers):
    """Returns a reader of ``func(sample of the first reader, sample of the second, ..)``."""
    return lambda: map(func, *[reader() for reader in readers])


def chain(*readers):
    """Returns a reader of the samples of all readers, one reader after another."""
    return lambda: itertools.chain.from_iterable(reader() for reader in readers)


def firstn(reader, n):
    """Returns a reader of the first ``n`` samples."""
    return lambda: itertools.islice(reader(), n)


def cache(reader):
    """Returns a reader that keeps all samples of the first pass in memory."""
    kept = []

    def read():
        if not kept:
            kept.extend(reader())
        return iter(kept)

    return read


__getattr__ = _absent(__name__)
