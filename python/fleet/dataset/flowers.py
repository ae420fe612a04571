"""Photographs of flowers: 3 * 224 * 224 numbers, and a class.

The public data set has 102 classes. The documents train on 10 (`class_dim`), and so do these.
"""

from ._images import images

SAMPLES = {"train": 6149, "test": 1020, "valid": 1020}

_CLASSES = 10


def train(mapper=None, buffered_size=1024, use_xmap=True, cycle=False):
    """Returns a reader of the samples for training. ``mapper`` changes each sample."""
    return _reader("train", mapper, cycle)


def test(mapper=None, buffered_size=1024, use_xmap=True, cycle=False):
    """Returns a reader of the samples for a test."""
    return _reader("test", mapper, cycle)


def valid(mapper=None, buffered_size=1024, use_xmap=True):
    """Returns a reader of the samples for validation."""
    return _reader("valid", mapper, cycle=False)


def _reader(part, mapper, cycle):
    # Patterns of 28 x 28 points, each drawn as 8 x 8 pixels.
    reader = images("dataset.flowers", SAMPLES, part, side=28, channels=3, count=_CLASSES, repeat=8)

    def read():
        while True:
            yield from map(mapper, reader()) if mapper else reader()
            if not cycle:
                return

    return read
