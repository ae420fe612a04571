"""Sentences: groups of `n` numbers of words (n-grams), or sequences and their successors."""

import numpy as np

from . import _generated, _words

SAMPLES = {"train": 42068, "test": 3370}


class DataType:
    """What a reader yields."""

    NGRAM = 1
    SEQ = 2


def build_dict(min_word_freq=50):
    """Returns the numbers of the words, with `<s>` and `<e>` for the ends of a sentence."""
    words = _words.dictionary()
    unknown = words.pop("<unk>")
    words.update({"<s>": unknown, "<e>": unknown + 1, "<unk>": unknown + 2})
    return words


def train(word_idx, n, data_type=DataType.NGRAM):
    """Returns a reader of the sentences for training."""
    return _reader("train", word_idx, n, data_type, 1)


def test(word_idx, n, data_type=DataType.NGRAM):
    """Returns a reader of the sentences for a test."""
    return _reader("test", word_idx, n, data_type, 2)


def _reader(part, word_idx, n, data_type, seed):
    if data_type not in (DataType.NGRAM, DataType.SEQ):
        raise ValueError(f"data_type: expected DataType.NGRAM or DataType.SEQ, got {data_type!r}")

    def read():
        rng = np.random.default_rng(seed)
        words = max(len(word_idx) - 3, 1)
        for _ in range(SAMPLES[part]):
            # A word is mostly the one after the word before it, so that it can be predicted.
            length = rng.integers(8, 24)
            jumps = np.where(rng.random(length) < 0.8, 1, rng.integers(0, words, length))
            sentence = ((rng.integers(words) + np.cumsum(jumps)) % words).tolist()
            begin, end = word_idx.get("<s>", 0), word_idx.get("<e>", 0)
            if data_type == DataType.SEQ:
                if n <= 0 or len(sentence) + 1 <= n:
                    yield [begin, *sentence], [*sentence, end]
                continue
            sentence = [begin, *sentence, end]
            for start in range(len(sentence) - n + 1):
                yield tuple(sentence[start : start + n])

    return _generated.reader("dataset.imikolov", read)
