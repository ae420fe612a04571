"""A training loop: epochs, validation, early stop, checkpoints, scalars and progress."""

import os
import sys
from collections import namedtuple

from fleet._executor import Executor, Scope, global_scope
from fleet._framework import Program, Variable, default_main_program

#: The result of a training. ``validated`` has the metrics of the last validation by label, and
#: ``ended`` the reason for the end: "Completed", "EarlyStop" or "Callback".
Trained = namedtuple(
    "Trained", "step epoch rows seconds ended resumed_step best best_step validated"
)


class Trainer:
    """Trains the main program of a job, in one process, as a rank, or as a worker of servers.

    * ``epochs``, ``steps``: passes over the data, and steps of the whole training, including those
      of earlier runs. One epoch by default.
    * ``watch``: variables by label, for progress, scalars and the callback.
    * ``metrics``, ``validation_data``: what to compute on other data. A metric is a variable, whose
      mean over all rows is taken, or ``("auc", prediction, label)``.
    * ``validate_every``: "epoch", or a number of steps.
    * ``goal``: label of a metric, and "min" or "max": ``("AUC", "max")``. It tells which model is
      best. ``early_stop`` ends the training after this many validations without an improvement by
      more than ``min_delta``.
    * ``checkpoints``: a folder. A training resumes from the newest checkpoint in it, after the
      batches that were made. ``save_steps`` and ``save_secs`` set when to save, and ``keep`` how
      many to keep. ``constants`` are values that must be the same to resume.
    * ``scalars``: a folder for ``scalars.csv`` and ``scalars.jsonl``, with a row for every
      ``scalars_every`` steps.
    * ``callback``: a function of a dict for each event. Its "kind" is "step", "epoch",
      "validated", or "saved". A true result stops the training.
    * ``shuffle``: whether an `InMemoryDataset` has another order in each epoch.
    * ``look_ahead``: whether a worker of servers requests the rows of the next step early.
    """

    def __init__(
        self,
        epochs=None,
        steps=None,
        watch=None,
        metrics=None,
        validation_data=None,
        validate_every="epoch",
        goal=None,
        min_delta=0.0,
        early_stop=None,
        checkpoints=None,
        save_steps=None,
        save_secs=600.0,
        keep=3,
        constants=None,
        scalars=None,
        scalars_every=100,
        callback=None,
        shuffle=True,
        look_ahead=True,
        progress=True,
    ):
        if (metrics is None) != (validation_data is None):
            raise ValueError("metrics and validation_data belong together: expected both or none")
        if callback is not None and not callable(callback):
            raise TypeError(f"callback: expected a function, got {callback!r}")
        means, aucs = _metrics(metrics or {})
        self._validation = validation_data
        self._progress = progress
        self._settings = {
            "epochs": _count("epochs", epochs),
            "steps": _count("steps", steps),
            "watched": [(label, _name("watch", it)) for label, it in (watch or {}).items()],
            "means": means,
            "aucs": aucs,
            "validate_steps": _every(validate_every),
            "goal": _goal(goal),
            "min_delta": float(min_delta),
            "patience": _count("early_stop", early_stop),
            "checkpoints": None if checkpoints is None else os.fspath(checkpoints),
            "save_steps": _count("save_steps", save_steps),
            "save_secs": None if save_secs is None else float(save_secs),
            "keep": _count("keep", keep),
            "constants": [(name, str(value)) for name, value in (constants or {}).items()],
            "scalars": None if scalars is None else os.fspath(scalars),
            "scalars_every": _count("scalars_every", scalars_every),
            "callback": callback,
            "shuffle": bool(shuffle),
            "look_ahead": bool(look_ahead),
        }

    def run(self, executor, data, program=None, scope=None):
        """Trains, and returns the result.

        ``data`` is a dataset, a loader, a table, or a function that returns an iterator of feeds.
        ``executor`` has run the startup program.
        """
        if not isinstance(executor, Executor):
            raise TypeError(f"executor: expected an Executor, got {executor!r}")
        program = default_main_program() if program is None else program
        if not isinstance(program, Program):
            raise TypeError(f"program: expected a Program, got {program!r}")
        scope = global_scope() if scope is None else scope
        if not isinstance(scope, Scope):
            raise TypeError(f"scope: expected a Scope, got {scope!r}")
        validation = self._validation
        if validation is not None:
            validation = _source("validation_data", validation, program)
        data = _source("data", data, program)
        sys.stdout.flush()
        settings = {**self._settings, "progress": self._display(), "write": _write}
        made = executor._cell.train(program._cell, data, validation, scope._cell, settings)
        return Trained(**made)

    def _display(self):
        if not self._progress:
            return "none"
        if "ipykernel" in sys.modules:
            return "rewritten"
        return "auto" if sys.stdout is sys.__stdout__ else "lines"

    def __repr__(self):
        given = {key: value for key, value in self._settings.items() if value not in (None, [])}
        return f"Trainer({', '.join(f'{key}={value!r}' for key, value in given.items())})"


def _write(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def _source(what, data, program):
    if hasattr(data, "_epochs"):
        return data._epochs()
    if hasattr(data, "_source"):
        return data._source()
    if callable(data):
        inputs = [(var.name, var.dtype) for var in program.list_vars() if var.is_data]
        return inputs, lambda: iter(data())
    raise TypeError(
        f"{what}: expected a dataset, a loader, a table, or a function that returns an iterator "
        f"of feeds, got {data!r}"
    )


def _metrics(metrics):
    means, aucs = [], []
    for label, metric in metrics.items():
        if isinstance(metric, tuple):
            if len(metric) != 3 or metric[0] != "auc":
                raise ValueError(
                    f"metrics: '{label}': expected a variable or ('auc', prediction, label), "
                    f"got {metric!r}"
                )
            aucs.append((label, _name("metrics", metric[1]), _name("metrics", metric[2])))
        else:
            means.append((label, _name("metrics", metric)))
    return means, aucs


def _name(what, item):
    if isinstance(item, Variable):
        return item.name
    if isinstance(item, str):
        return item
    raise TypeError(f"{what}: expected variables or names, got {item!r}")


def _count(what, value):
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what}: expected 1 or more, got {value!r}")
    return value


def _every(every):
    return None if every == "epoch" else _count("validate_every", every)


def _goal(goal):
    if goal is None:
        return None
    if not isinstance(goal, tuple) or len(goal) != 2 or goal[1] not in ("min", "max"):
        raise ValueError(f"goal: expected a label and 'min' or 'max', got {goal!r}")
    return goal[0], goal[1] == "max"
