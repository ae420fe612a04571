"""Digits: 784 numbers in -1 to 1, and a class of 10."""

from ._images import images

SAMPLES = {"train": 60000, "test": 10000}


def train():
    """Returns a reader of the samples for training."""
    return images("dataset.mnist", SAMPLES, "train", side=28, channels=1, count=10)


def test():
    """Returns a reader of the samples for a test."""
    return images("dataset.mnist", SAMPLES, "test", side=28, channels=1, count=10)
