"""Training, evaluation and export of a classifier of many classes: ``plsc.entry``."""

import inspect
import os
import shutil
import types

import numpy as np

from fleet import _checks, optimizer, regularizer, static
from fleet._framework import warn_user
from fleet._logging import logger
from fleet._trainer import Trainer
from fleet.distributed import fleet as jobs
from fleet.fluid.layers import linear_lr_warmup, piecewise_decay
from fleet.utils import unique_name

from . import models
from ._images import images
from .config import config

LOSSES = ("softmax", "arcface", "dist_softmax", "dist_arcface")

#: The batch of all workers that the default learning rate is for.
LR_BATCH = 1024


class Entry:
    """A classifier of many classes: its settings, and what can be done with it.

    Data comes from ``train_reader``, ``test_reader`` and ``predict_reader``: functions that return
    an iterator of batches. A batch is a list of samples, and a sample a tuple of an image and a
    label (without a label for prediction). Worker ``i`` of ``n`` trains the batches ``i``,
    ``i + n``, and so on. Without ``train_reader``, images are read from the folder of
    ``set_dataset_dir``: its file ``label.txt`` has a path and a class in each line.
    """

    def __init__(self):
        self.config = config
        for name, value in config.items():
            setattr(self, name, value)
        self.optimizer = None
        self.model = None
        self.train_reader = None
        self.test_reader = None
        self.predict_reader = None
        self.train_program = static.Program()
        self.startup_program = static.Program()
        self.test_program = static.Program()
        self._amp = None
        self._weights = None
        self._has_dataset_dir = False
        self._inputs = None
        self._scope = None

    def set_train_batch_size(self, size):
        """Samples of a batch of one worker."""
        self.train_batch_size = _positive("train_batch_size", size)

    def set_test_batch_size(self, size):
        """Samples of a batch of evaluation. Readers of the caller have batches already."""
        self.test_batch_size = _positive("test_batch_size", size)

    def set_train_epochs(self, num):
        """Passes over the training data."""
        self.train_epochs = _positive("train_epochs", num)

    def set_warmup_epochs(self, num):
        """Passes in which the learning rate grows to its first value."""
        if isinstance(num, bool) or not isinstance(num, int) or num < 0:
            raise ValueError(f"warmup_epochs: expected 0 or more, got {num!r}")
        self.warmup_epochs = num

    def set_train_image_num(self, num):
        """Images of an epoch, from which the steps of the warmup are computed."""
        self.train_image_num = _positive("train_image_num", num)

    def set_class_num(self, num):
        """Number of classes."""
        self.num_classes = _positive("class_num", num)

    def set_emb_size(self, size):
        """Width of the features of the built-in networks."""
        self.emb_dim = _positive("emb_size", size)

    set_emb_dim = set_emb_size

    def set_sample_ratio(self, ratio):
        """Share of the classes that a step computes: those of its labels, and random others."""
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
            raise ValueError(f"sample_ratio: expected a number above 0, up to 1, got {ratio!r}")
        self.sample_ratio = float(ratio)

    def set_image_shape(self, shape):
        """Shape of an image: channels, height, width."""
        if not isinstance(shape, (list, tuple)) or len(shape) != 3:
            raise ValueError(f"image_shape: expected 3 numbers, got {shape!r}")
        self.image_shape = tuple(_positive("image_shape", size) for size in shape)

    def set_loss_type(self, loss_type):
        """"softmax" or "arcface", or those with "dist\\_" before, whose classes workers divide."""
        if loss_type not in LOSSES:
            raise ValueError(f"loss_type: expected one of {', '.join(LOSSES)}, got {loss_type!r}")
        self.loss_type = loss_type

    def set_model(self, model):
        """The network in front of the classifier, a `models.BaseModel`."""
        if not isinstance(model, models.BaseModel):
            raise ValueError(f"model: expected a plsc.models.BaseModel, got {model!r}")
        self.model = model

    def set_input_info(self, inputs):
        """Inputs of a network that has no image, in the order of the samples: a list of dicts with
        ``name``, ``shape`` and ``dtype``. One of them is the ``label``."""
        names = [info.get("name") for info in inputs]
        if "label" not in names:
            raise ValueError(f"input_info: expected an input 'label', got {names}")
        self._inputs = list(inputs)

    def set_optimizer(self, optimizer):
        """The optimizer. The default is momentum, with a rate that falls by steps."""
        if not hasattr(optimizer, "minimize"):
            raise ValueError(f"optimizer: expected an optimizer, got {optimizer!r}")
        self.optimizer = optimizer

    def set_distfc_attr(self, param_attr=None, bias_attr=None):
        """Attributes of the weights of the classes."""
        if bias_attr not in (None, False):
            raise NotImplementedError(
                "bias_attr is not supported: the classes have no bias\n  help: leave it out"
            )
        self._weights = param_attr

    def set_mixed_precision(
        self,
        use_fp16,
        init_loss_scaling=1.0,
        incr_every_n_steps=2000,
        decr_every_n_nan_or_inf=2,
        incr_ratio=2.0,
        decr_ratio=0.5,
        use_dynamic_loss_scaling=True,
        amp_lists=None,
    ):
        """Computes in 16 bits."""
        if amp_lists is not None:
            raise NotImplementedError(
                "amp_lists is not supported\n  help: leave it out: each op has a precision"
            )
        self._amp = {
            "init_loss_scaling": init_loss_scaling,
            "incr_every_n_steps": incr_every_n_steps,
            "decr_every_n_nan_or_inf": decr_every_n_nan_or_inf,
            "incr_ratio": incr_ratio,
            "decr_ratio": decr_ratio,
            "use_dynamic_loss_scaling": use_dynamic_loss_scaling,
        }
        if not use_fp16:
            self._amp = None

    def set_dataset_dir(self, directory):
        """Folder of the images, with their classes in ``label.txt``."""
        self.dataset_dir = _checks.path("dataset_dir", directory)
        self._has_dataset_dir = True

    def set_model_save_dir(self, directory):
        """Folder for the trained model: ``train`` saves into its folder ``model``."""
        self.model_save_dir = _checks.path("model_save_dir", directory)

    def set_checkpoint_dir(self, directory):
        """A saved model, to begin with, to test, or to predict: the folder ``model`` of a
        training. Empty for none."""
        self.checkpoint_dir = _checks.path("checkpoint_dir", directory)

    def set_with_test(self, with_test):
        """Whether a training ends with a test. It needs a ``test_reader``."""
        self.with_test = bool(with_test)

    def set_val_targets(self, targets):
        """Not supported: pairs of faces are not evaluated."""
        raise NotImplementedError(
            "val_targets are not supported\n  "
            "help: assign test_reader, for the accuracy on images with labels"
        )

    def set_calc_acc(self, calc):
        """Not supported while training: no worker has the logits of all classes."""
        if calc:
            warn_user(
                "set_calc_acc: accuracy is not computed while training\n  "
                "help: assign test_reader: a training ends with its accuracy"
            )

    def set_hdfs_info(self, fs_name, fs_ugi, fs_dir_for_save=None, fs_checkpoint_dir=None):
        """Not supported: models are saved in local folders."""
        raise NotImplementedError(
            "set_hdfs_info is not supported\n  "
            "help: copy the folder model_save_dir after the training"
        )

    def train(self):
        """Trains, saves the model, and tests it. A training that was stopped resumes, if its
        folder ``checkpoints`` is still there."""
        self._join()
        self.train_program, self.startup_program = static.Program(), static.Program()
        self._write(self.train_program, is_train=True)
        executor = self._started()
        if self.checkpoint_dir:
            self._load(executor, self.train_program)
        folder = os.path.join(self.model_save_dir, "checkpoints")
        trainer = Trainer(
            epochs=self.train_epochs, watch={"loss": self._loss}, checkpoints=folder
        )
        with static.scope_guard(self._scope):
            trained = trainer.run(executor, self._batches, self.train_program, self._scope)
            self._save(executor)
            jobs.barrier_worker()
            if jobs.is_first_worker():
                shutil.rmtree(folder, ignore_errors=True)
        if self.with_test and self.test_reader is not None:
            whole = jobs.whole_model()
            if whole is not None:
                self._accuracy(executor, whole.program, whole.scope)
        return trained

    def test(self):
        """Returns the shares of the samples of ``test_reader`` whose class is the first, and among
        the first five. Prints them."""
        self._join()
        executor = self._restored()
        return self._accuracy(executor, self.test_program, self._scope)

    def predict(self):
        """Returns the features of the samples of ``predict_reader``."""
        self._join()
        executor = self._restored()
        reader = _needed("predict_reader", self.predict_reader)
        with static.scope_guard(self._scope):
            program = self.test_program
            made = [self._features(executor, program, batch) for batch in reader()]
        return np.concatenate(made) if made else np.zeros((0, self.emb_dim), "float32")

    def convert_for_prediction(self):
        """Saves the network of the saved model, without the classes, into the folder ``inference``
        of the model."""
        self._join()
        executor = self._restored()
        folder = os.path.join(self.model_save_dir, "inference")
        feeds = [name for name in self._names if name != "label"]
        with static.scope_guard(self._scope):
            static.save_inference_model(
                folder, feeds, [self._embedding], executor, self.test_program
            )

    def _join(self):
        jobs.init(is_collective=True)

    @property
    def _names(self):
        return [info["name"] for info in self._input_info()]

    def _input_info(self):
        if self._inputs is not None:
            return self._inputs
        return [
            {"name": "image", "shape": [None, *self.image_shape], "dtype": "float32"},
            {"name": "label", "shape": [None, 1], "dtype": "int64"},
        ]

    def _write(self, program, is_train):
        """Writes the network, and for training the loss and the update."""
        with static.program_guard(program, self.startup_program), unique_name.guard():
            inputs = {info["name"]: static.data(**info) for info in self._input_info()}
            self._embedding = self._network(inputs, is_train)
            is_margin = self.loss_type.endswith("arcface")
            loss = static.nn.class_loss(
                self._embedding,
                inputs["label"],
                self.num_classes,
                normalize=is_margin,
                margin=self.margin if is_margin else 0.0,
                scale=self.scale if is_margin else 1.0,
                sample=self.sample_ratio if self.sample_ratio < 1 else None,
                weight_attr=self._weights,
                name="classes",
            )
            if is_train:
                self._loss = loss
                strategy = jobs.DistributedStrategy()
                if self.loss_type.startswith("dist_") and jobs.worker_num() > 1:
                    strategy.hybrid_configs = {"split_classes": True}
                if self._amp is not None:
                    strategy.amp = True
                    strategy.amp_configs = self._amp
                rule = self.optimizer or self._default_optimizer()
                jobs.distributed_optimizer(rule, strategy).minimize(loss)

    def _network(self, inputs, is_train):
        model = self.model
        if model is None:
            made = getattr(models, self.model_name, None)
            if made is None:
                raise ValueError(
                    f"model_name: expected ResNet50, ResNet101 or ResNet152, got {self.model_name!r}"
                )
            model = made(self.emb_dim)
        if "label" in inspect.signature(model.build_network).parameters:
            first = inputs[self._names[0]]
            return model.build_network(input=first, label=inputs["label"], is_train=is_train)
        every = types.SimpleNamespace(**inputs)
        return model.build_network(input=every, is_train=is_train)

    def _default_optimizer(self):
        batch = self.train_batch_size * jobs.worker_num()
        first = self.lr * batch / LR_BATCH
        rates = [first * 0.1**index for index in range(len(self.lr_steps) + 1)]
        rate = piecewise_decay(list(self.lr_steps), rates)
        if self.warmup_epochs:
            steps = self.warmup_epochs * -(-self.train_image_num // batch)
            rate = linear_lr_warmup(rate, steps, 0.0, first)
        decay = regularizer.L2Decay(5e-4)
        return optimizer.Momentum(rate, momentum=0.9, weight_decay=decay)

    def _started(self):
        self._scope = static.Scope()
        executor = static.Executor()
        with static.scope_guard(self._scope):
            executor.run(self.startup_program)
        return executor

    def _restored(self):
        """Makes the program that evaluates, with the variables of the saved model."""
        if jobs.worker_num() > 1:
            raise RuntimeError(
                f"test, predict and convert_for_prediction run in one process, not in "
                f"{jobs.worker_num()} workers\n  help: start the script without fleetrun"
            )
        if not self.checkpoint_dir:
            self.checkpoint_dir = os.path.join(self.model_save_dir, "model")
        self.startup_program, self.test_program = static.Program(), static.Program()
        self._write(self.test_program, is_train=False)
        executor = self._started()
        self._load(executor, self.test_program)
        return executor

    def _load(self, executor, program):
        """Loads the network and the classes, but no state of optimizers."""
        forward = static.Program()
        kept, self.startup_program = self.startup_program, static.Program()
        embedding = self._embedding
        self._write(forward, is_train=False)
        self.startup_program, self._embedding = kept, embedding
        names = {var.name for var in forward.list_vars() if var.persistable}
        with static.scope_guard(self._scope):
            static.load_vars(
                executor, self.checkpoint_dir, program, predicate=lambda var: var.name in names
            )

    def _save(self, executor):
        folder = os.path.join(self.model_save_dir, "model")
        jobs.save_persistables(executor, folder, self.train_program)
        if jobs.is_first_worker():
            logger.info("saved %s", folder)

    def _batches(self):
        """Returns the feeds of this worker's batches of an epoch."""
        workers, own = jobs.worker_num(), jobs.worker_index()
        group = []
        for batch in self._reader()():
            # Features of all workers are put together, so their batches are equally large.
            if workers > 1 and len(batch) != self.train_batch_size:
                continue
            group.append(batch)
            if len(group) == workers:
                yield self._feed(group[own])
                group = []

    def _reader(self):
        if self.train_reader is not None:
            return self.train_reader
        if self._inputs is not None:
            _needed("train_reader", None)
        return images(
            self.dataset_dir,
            self.image_shape,
            self.num_classes,
            self.train_batch_size,
            generate=not self._has_dataset_dir,
        )

    def _feed(self, batch):
        """Returns the arrays of a batch of samples."""
        feed = {}
        for at, info in enumerate(self._input_info()):
            shape = [size for size in info["shape"][1:]]
            try:
                values = [np.asarray(sample[at], info["dtype"]).reshape(shape) for sample in batch]
            except (IndexError, TypeError, ValueError) as error:
                raise ValueError(
                    f"a sample of the reader: expected {self._names}, "
                    f"with '{info['name']}' of shape {shape} and type {info['dtype']}: {error}"
                ) from None
            feed[info["name"]] = np.stack(values)
        return feed

    def _features(self, executor, program, batch):
        """Returns the features of samples, which may lack the label."""
        count = len(self._names)
        label = self._names.index("label")
        given = [tuple(sample) for sample in batch]
        full = [s if len(s) == count else (*s[:label], 0, *s[label:]) for s in given]
        return executor.run(program, feed=self._feed(full), fetch_list=[self._embedding.name])[0]

    def _accuracy(self, executor, program, scope):
        """Computes the accuracy on the samples of ``test_reader``, and prints it."""
        reader = _needed("test_reader", self.test_reader)
        label = self._names.index("label")
        weights = scope["classes.w_0"]
        if self.loss_type.endswith("arcface"):
            weights = weights / np.linalg.norm(weights, axis=1, keepdims=True)
        first = five = count = 0
        with static.scope_guard(scope):
            for batch in reader():
                logits = self._features(executor, program, batch) @ weights.T
                labels = np.array([int(np.asarray(sample[label]).item()) for sample in batch])
                own = logits[np.arange(len(batch)), labels]
                before = (logits > own[:, None]).sum(axis=1)
                first += int((before < 1).sum())
                five += int((before < 5).sum())
                count += len(batch)
        if count == 0:
            raise ValueError("test_reader: expected samples, got none")
        print(f"test: acc1 {first / count:.4f}, acc5 {five / count:.4f} of {count} samples")
        return first / count, five / count


def _positive(what, value):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{what}: expected 1 or more, got {value!r}")
    return int(value)


def _needed(what, value):
    if value is None:
        raise ValueError(f"{what} is missing\n  help: assign it to the Entry: entry.{what} = ..")
    return value
