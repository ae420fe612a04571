"""Models: ``fleetx.applications``. They are those of the Rust library."""

import numpy as np

from fleet._framework import call
from fleet.dataset import _generated


class Resnet50:
    """ResNet-50 in the default program: its inputs, `loss`, and accuracies as `target`.

    ``classes`` and ``size``, the height and width of the images, make it smaller.
    """

    #: Samples of an epoch that a loader generates.
    SAMPLES = 512

    def __init__(self, classes=1000, size=224):
        made = call("resnet", {"layers": 50, "classes": classes, "size": size})
        image, label, self.logits, self.loss, acc1, acc5 = made
        self.inputs = [image, label]
        self.target = [acc1, acc5]
        self._classes = classes

    def load_imagenet_from_file(self, filelist, batch_size=32, use_dali=False):
        """Returns a loader of generated images. ``filelist`` is not read, so that nothing is
        decoded either."""
        return self.get_train_dataloader(filelist, batch_size)

    def get_train_dataloader(self, local_path, batch_size=32):
        """Returns a loader of generated images: each call begins an epoch of feeds."""
        _generated.warn("fleetx.applications.Resnet50")
        side = self.inputs[0].shape[2]
        names = [variable.name for variable in self.inputs]

        def load():
            patterns = _generated.classes(np.random.default_rng(0), self._classes, 3)
            rng = np.random.default_rng(1)
            for _ in range(max(self.SAMPLES // batch_size, 1)):
                labels = rng.integers(self._classes, size=(batch_size, 1))
                # A class is a colour.
                images = rng.standard_normal((batch_size, 3, side, side), dtype="float32")
                images += patterns[labels[:, 0]][:, :, None, None]
                yield dict(zip(names, (images, labels)))

        return load

    get_val_dataloader = get_train_dataloader


class Word2vec:
    """Skip-gram with negative sampling in the default program: its inputs and `loss`."""

    #: Pairs of words of an epoch that a loader generates.
    SAMPLES = 4096

    def __init__(self, vocabulary=10000, width=128, negatives=5):
        config = {"vocabulary": vocabulary, "width": width, "negatives": negatives}
        center, context, negative, self.logits, self.loss = call("word2vec", config)
        self.cost = self.loss
        self.inputs = [center, context, negative]
        self._vocabulary = vocabulary

    def load_dataset_from_file(self, train_files_path, dict_path=None, batch_size=128):
        """Returns a loader of generated words: each call begins an epoch of feeds. The files are
        not read."""
        _generated.warn("fleetx.applications.Word2vec")
        names = [variable.name for variable in self.inputs]
        negatives = self.inputs[2].shape[1]

        def load():
            rng = np.random.default_rng(1)
            for _ in range(max(self.SAMPLES // batch_size, 1)):
                centers = rng.integers(self._vocabulary, size=(batch_size, 1))
                # A neighbour is the word beside it.
                contexts = (centers + rng.choice([-1, 1], size=(batch_size, 1))) % self._vocabulary
                others = rng.integers(self._vocabulary, size=(batch_size, negatives))
                yield dict(zip(names, (centers, contexts, others)))

        return load
