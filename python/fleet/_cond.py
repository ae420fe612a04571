"""`static.nn.cond`: a choice between two branches of a network, made in each run."""

from fleet._absent import spelled as _spelled
from fleet import _fleet
from fleet._framework import (
    Variable,
    default_main_program,
    default_startup_program,
    place,
    undone_on_error,
)


def cond(pred, true_fn=None, false_fn=None, name=None):
    """Returns the result of ``true_fn`` in runs in which ``pred``, one boolean, is true, and that
    of ``false_fn`` in others.

    Both functions are called once, to write their branches. They take no arguments, use variables
    around them, and return a variable, a list or tuple of results, or None. Both results must have
    the same form, and their variables the same types and shapes. Only the chosen branch runs.
    Gradients flow through it, and parameters of the other one have a gradient of zero in that run.

    If a function raises an exception, the programs are as they were before the call.
    """
    if not isinstance(pred, Variable):
        raise TypeError(f"cond(): pred: expected a Variable, got {pred!r}")
    for key, function in [("true_fn", true_fn), ("false_fn", false_fn)]:
        if function is not None and not callable(function):
            raise TypeError(f"cond(): {key}: expected a function, got {function!r}")
    if name is not None and not isinstance(name, str):
        raise TypeError(f"cond(): name: expected a string, got {name!r}")
    main, startup = default_main_program(), default_startup_program()
    _check_program("pred", pred, main)
    with undone_on_error(main, startup):
        cells = main._cell, startup._cell
        _fleet.begin_cond(*cells, place(), pred._id, name)
        results, form = _branch("true_fn", true_fn, main)
        _fleet.begin_else(*cells, place(), [var._id for var in results])
        others, other_form = _branch("false_fn", false_fn, main)
        made = _fleet.end_cond(*cells, place(), [var._id for var in others], name)
        if form != other_form:
            raise ValueError(
                "cond(): the branches return results of different forms: "
                f"expected {_shown(form)} from both, got {_shown(other_form)}"
            )
    return _filled(form, iter([Variable(main, id) for id in made]))


def _branch(key, function, program):
    """Calls the function of a branch. Returns its variables, and the form of its result."""
    variables = []

    def form(value):
        if value is None:
            return None
        if isinstance(value, Variable):
            _check_program(key, value, program)
            variables.append(value)
            return Variable
        if isinstance(value, (list, tuple)):
            kind = list if isinstance(value, list) else tuple
            return kind(form(part) for part in value)
        raise TypeError(
            _spelled(
                f"cond(): result of {key}: expected a Variable, a list or tuple of them, or None, "
                f"got {value!r}\n  help: write numbers as fleet.full([1], value)"
            )
        )

    return variables, form(None if function is None else function())


def _check_program(key, variable, program):
    if variable.program is not program:
        raise ValueError(
            f"cond(): {key}: {variable.name!r} belongs to another program\n  "
            "help: build the network in one program_guard"
        )


def _filled(form, variables):
    """Returns a result of this form."""
    if form is None:
        return None
    if form is Variable:
        return next(variables)
    return type(form)(_filled(part, variables) for part in form)


def _shown(form):
    if form is None:
        return "None"
    if form is Variable:
        return "a Variable"
    inner = ", ".join(_shown(part) for part in form)
    return f"[{inner}]" if isinstance(form, list) else f"({inner})"
