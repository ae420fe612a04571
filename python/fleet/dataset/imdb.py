"""Reviews: a list of numbers of words, and 0 (positive) or 1 (negative)."""

import numpy as np

from . import _generated, _words

SAMPLES = {"train": 25000, "test": 25000}


def word_dict():
    """Returns the numbers of the words."""
    return _words.dictionary()


def train(word_idx):
    """Returns a reader of the reviews for training."""
    return _reader("train", word_idx, 1)


def test(word_idx):
    """Returns a reader of the reviews for a test."""
    return _reader("test", word_idx, 2)


def _reader(part, word_idx, seed):
    def read():
        rng = np.random.default_rng(seed)
        half = max(len(word_idx) // 2, 1)
        for _ in range(SAMPLES[part]):
            label = int(rng.integers(2))
            length = int(rng.integers(20, 200))
            # Two of three words are of the half that belongs to the class.
            own = rng.random(length) < 2.0 / 3.0
            words = rng.integers(0, half, length) + half * np.where(own, label, 1 - label)
            yield words.tolist(), label

    return _generated.reader("dataset.imdb", read)
