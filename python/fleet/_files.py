"""Saving and loading variables and models."""

import os

from fleet import _checks, _fleet
from fleet._executor import global_scope
from fleet._framework import Program, Variable, default_main_program


def save_vars(executor, dirname, main_program=None, vars=None, predicate=None, filename=None):
    """Saves variables that persist: all, those in ``vars``, or those for which ``predicate`` holds.

    ``dirname`` is a folder, or a file that ends in .npz or .safetensors.
    """
    program = _program("main_program", main_program)
    chosen = _chosen(program, vars, predicate)
    _fleet.save_vars(_path(dirname, filename), program._cell, global_scope()._cell, chosen)


def load_vars(executor, dirname, main_program=None, vars=None, predicate=None, filename=None):
    """Loads variables that `save_vars` saved. Nothing changes if one is missing or has another
    shape."""
    program = _program("main_program", main_program)
    chosen = _chosen(program, vars, predicate)
    _fleet.load_vars(_path(dirname, filename), program._cell, global_scope()._cell, chosen)


def save_persistables(executor, dirname, main_program=None, filename=None):
    """Saves all variables that persist: parameters, optimizer state, statistics and counters."""
    save_vars(executor, dirname, main_program, filename=filename)


def load_persistables(executor, dirname, main_program=None, filename=None):
    """Loads what `save_persistables` saved."""
    load_vars(executor, dirname, main_program, filename=filename)


def save_params(executor, dirname, main_program=None, filename=None):
    """Saves the parameters."""
    program = _program("main_program", main_program)
    save_vars(executor, dirname, program, program.all_parameters(), filename=filename)


def load_params(executor, dirname, main_program=None, filename=None):
    """Loads the parameters."""
    program = _program("main_program", main_program)
    load_vars(executor, dirname, program, program.all_parameters(), filename=filename)


def save_inference_model(path_prefix, feed_vars, fetch_vars, executor, program=None):
    """Saves the part of a program that computes ``fetch_vars`` from ``feed_vars``."""
    program, _, targets = _model_vars(feed_vars, fetch_vars, program)
    folder = _checks.path("path_prefix", path_prefix)
    _fleet.save_inference_model(folder, program._cell, targets, global_scope()._cell)


def load_inference_model(path_prefix, executor):
    """Loads a model. Returns the program, the names of its inputs, and its targets; the variables
    are in the global scope. A model of a job with servers (``fleet.save_inference_model``) reads
    the saved tables in this process."""
    folder = _checks.path("path_prefix", path_prefix)
    cell, feeds, targets = _fleet.load_inference_model(folder, global_scope()._cell)
    program = Program._of(cell)
    return [program, feeds, [program.var(name) for name in targets]]


def _model_vars(feed_vars, fetch_vars, program):
    """Returns the program of a model, and the names of its inputs and results."""
    feeds, targets = _listed("feed_vars", feed_vars), _listed("fetch_vars", fetch_vars)
    if program is None and targets and isinstance(targets[0], Variable):
        program = targets[0].program
    program = _program("program", program)
    for name in _names(targets):
        program.var(name)
    for name in _names(feeds):
        if not program.var(name).is_data:
            raise ValueError(f"feed_vars: '{name}' is not an input of the program")
    return program, _names(feeds), _names(targets)


def _listed(what, given):
    given = [given] if isinstance(given, (str, Variable)) else given
    if not isinstance(given, (list, tuple)):
        raise TypeError(f"{what}: expected variables, got {given!r}")
    return given


def _names(given):
    for item in given:
        if not isinstance(item, (str, Variable)):
            raise TypeError(f"expected variables or names, got {item!r}")
    return [item.name if isinstance(item, Variable) else item for item in given]


def _program(what, program):
    program = default_main_program() if program is None else program
    if not isinstance(program, Program):
        raise TypeError(f"{what}: expected a Program, got {program!r}")
    return program


def _path(dirname, filename):
    dirname = _checks.path("dirname", dirname)
    return os.path.join(dirname, _checks.path("filename", filename)) if filename else dirname


def _chosen(program, vars, predicate):
    if vars is not None:
        names = _names(vars)
        for name in names:
            program.var(name)
        return set(names)
    if predicate is not None:
        return {var.name for var in program.list_vars() if predicate(var)}
    return None
