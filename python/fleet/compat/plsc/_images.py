"""Images and their classes, from a folder, or generated."""

import os

import numpy as np

from fleet.dataset import _generated

#: Images of an epoch that are generated, in batches.
BATCHES = 8


def images(folder, shape, classes, batch_size, generate):
    """Returns a reader of batches of the images in a folder. If the folder does not exist, and
    ``generate`` is true, images are generated."""
    listed = os.path.join(folder, "label.txt")
    if not os.path.exists(listed):
        if generate:
            _generated.warn("plsc.Entry")
            return lambda: _made(shape, classes, batch_size)
        raise FileNotFoundError(
            f"{listed} does not exist: expected a line 'path class' for each image\n  "
            "help: write it, or assign batches of your own to train_reader"
        )
    return lambda: _batches(_read(folder, listed, shape, classes), batch_size)


def _made(shape, classes, batch_size):
    rng = np.random.default_rng(1)
    for _ in range(BATCHES):
        labels = rng.integers(classes, size=batch_size)
        # A class is a colour.
        colours = [np.random.default_rng(label).uniform(-1, 1, shape[0]) for label in labels]
        noise = rng.standard_normal((batch_size, *shape), dtype="float32")
        yield [
            (colour[:, None, None].astype("float32") + one, label)
            for colour, one, label in zip(colours, noise, labels)
        ]


def _batches(samples, batch_size):
    batch = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == batch_size:
            yield batch
            batch = []
    if batch:
        yield batch


def _read(folder, listed, shape, classes):
    try:
        from PIL import Image
    except ImportError:
        raise ImportError(
            "reading images needs the package Pillow\n  "
            "help: pip install pillow, or assign batches of arrays to train_reader"
        ) from None
    with open(listed, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            name, _, label = line.strip().replace("\t", " ").rpartition(" ")
            if not name or not label.isdecimal() or int(label) >= classes:
                raise ValueError(
                    f"{listed}:{number}: expected a path and a class below {classes}, "
                    f"got {line.strip()!r}"
                )
            with Image.open(os.path.join(folder, name)) as image:
                mode = "RGB" if shape[0] == 3 else "L"
                pixels = np.asarray(image.convert(mode).resize((shape[2], shape[1])), "float32")
            yield (pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1) - 127.5) / 128, int(label)
