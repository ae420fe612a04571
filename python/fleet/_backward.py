"""The backward pass."""

from fleet import _fleet
from fleet._framework import Variable, _state, default_startup_program, place


def append_backward(loss, parameter_list=None, no_grad_set=None):
    """Appends the backward pass and returns the parameters with their gradients."""
    return backward(loss, None, parameter_list, no_grad_set)


def backward(loss, startup_program, parameters, no_grad_set):
    _check_loss(loss)
    startup = startup_program or default_startup_program()
    parameters = None if parameters is None else names("parameters", parameters)
    no_grad = names("no_grad_set", no_grad_set or [])
    pairs = _fleet.backward(
        loss._cell, startup._cell, place(), loss._id, parameters, no_grad
    )
    return variables(loss.program, pairs)


def gradients(targets, inputs, target_gradients=None, no_grad_set=None):
    """Appends the gradients of targets for inputs. An input without one has None."""
    if target_gradients is not None or no_grad_set:
        raise NotImplementedError("gradients() does not support target_gradients and no_grad_set")
    targets, inputs = _listed(targets), _listed(inputs)
    if not targets:
        raise ValueError("gradients() needs one target or more")
    program = targets[0].program
    for var in targets + inputs:
        if var.program is not program:
            raise ValueError(f"{var!r} belongs to another program")
    made = _fleet.gradients(
        program._cell,
        _state.startup._cell,
        place(),
        [var._id for var in targets],
        [var._id for var in inputs],
    )
    return [None if id is None else Variable(program, id) for id in made]


def names(what, given):
    """Returns the names of variables, which may be given by name."""
    made = [item.name if isinstance(item, Variable) else item for item in given]
    for item in made:
        if not isinstance(item, str):
            raise TypeError(f"{what}: expected variables or names, got {item!r}")
    return made


def variables(program, pairs):
    return [(Variable(program, param), Variable(program, grad)) for param, grad in pairs]


def _listed(given):
    given = [given] if isinstance(given, Variable) else list(given)
    for item in given:
        if not isinstance(item, Variable):
            raise TypeError(f"expected variables, got {item!r}")
    return given


def _check_loss(loss):
    if not isinstance(loss, Variable):
        raise TypeError(f"loss: expected a Variable, got {loss!r}")
