"""Images of classes: the pattern of the class, and noise."""

import numpy as np

from . import _generated


def images(name, samples, part, side, channels, count, low=-1.0, repeat=1):
    """Returns a reader of flat float32 images, in ``low`` to 1, with their class.

    A pattern has ``side * side`` points; each is drawn as ``repeat * repeat`` pixels.
    """

    def read():
        patterns = _generated.classes(np.random.default_rng(0), count, channels * side * side)
        rng = np.random.default_rng([1, len(part), samples[part]])
        for _ in range(samples[part]):
            label = int(rng.integers(count))
            noise = rng.standard_normal(patterns.shape[1], dtype="float32")
            image = np.clip(0.6 * patterns[label] + 0.3 * noise, -1.0, 1.0)
            if low == 0.0:
                image = 0.5 * (image + 1.0)
            if repeat > 1:
                image = image.reshape(channels, side, side)
                image = image.repeat(repeat, axis=1).repeat(repeat, axis=2).reshape(-1)
            yield image, label

    return _generated.reader(name, read)
