"""Prices of houses: 13 features, and a price, which is linear in them but for some noise."""

import numpy as np

from . import _generated

SAMPLES = {"train": 404, "test": 102}

feature_names = [
    "CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT",
]  # fmt: skip


def train():
    """Returns a reader of the samples for training."""
    return _reader("train", 1)


def test():
    """Returns a reader of the samples for a test."""
    return _reader("test", 2)


def _reader(part, seed):
    def read():
        weights = np.random.default_rng(0).uniform(-8.0, 8.0, 13)
        rng = np.random.default_rng(seed)
        for _ in range(SAMPLES[part]):
            features = rng.uniform(-0.5, 0.5, 13)
            price = 22.5 + features @ weights + rng.normal(0.0, 0.5)
            yield features.astype("float32"), np.array([price], "float32")

    return _generated.reader("dataset.uci_housing", read)
