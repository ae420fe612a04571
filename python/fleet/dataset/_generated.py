"""What the generated data sets have in common."""

from fleet._framework import warn_user

_warned = set()


def warn(name):
    """Warns, once for each data set, that its samples are generated."""
    if name not in _warned:
        _warned.add(name)
        warn_user(
            f"{name}: the samples are generated on this machine; nothing is downloaded\n  "
            "help: read your own files for real training"
        )


def reader(name, samples):
    """Returns a reader: each call begins the samples from the start, which are always the same."""

    def read():
        yield from samples()

    warn(name)
    return read


def classes(rng, count, size):
    """Returns one pattern for each class, in -1 to 1."""
    return rng.uniform(-1.0, 1.0, (count, size)).astype("float32")
