"""Small colour images: 3 * 32 * 32 numbers in 0 to 1, and a class of 10 or of 100."""

from ._images import images

SAMPLES = {"train": 50000, "test": 10000}


def _reader(part, count):
    return images(f"dataset.cifar{count}", SAMPLES, part, side=32, channels=3, count=count, low=0.0)


def train10(cycle=False):
    """Returns a reader of the samples for training, of 10 classes."""
    return _cycled(_reader("train", 10), cycle)


def test10(cycle=False):
    """Returns a reader of the samples for a test, of 10 classes."""
    return _cycled(_reader("test", 10), cycle)


def train100():
    """Returns a reader of the samples for training, of 100 classes."""
    return _reader("train", 100)


def test100():
    """Returns a reader of the samples for a test, of 100 classes."""
    return _reader("test", 100)


def _cycled(reader, cycle):
    def forever():
        while True:
            yield from reader()

    return forever if cycle else reader
