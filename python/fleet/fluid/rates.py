"""The schedules of the 1.x interface, ``fleet.fluid.layers.piecewise_decay`` and others, as those
of `fleet.optimizer.lr`."""

import math

from fleet.optimizer import lr


def noam_decay(d_model, warmup_steps, learning_rate=1.0):
    """``rate * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)``."""
    return lr.NoamDecay(d_model, warmup_steps, learning_rate)


def piecewise_decay(boundaries, values):
    """``values[i]`` before step ``boundaries[i]``, then the last value."""
    return lr.PiecewiseDecay(boundaries, values)


def exponential_decay(learning_rate, decay_steps, decay_rate, staircase=False):
    """``rate * decay_rate^(step / decay_steps)``; with ``staircase``, of whole quotients."""
    if staircase:
        return lr.StepDecay(learning_rate, decay_steps, decay_rate)
    return lr.ExponentialDecay(learning_rate, decay_rate ** (1.0 / decay_steps))


def natural_exp_decay(learning_rate, decay_steps, decay_rate, staircase=False):
    """``rate * exp(-decay_rate * step / decay_steps)``; with ``staircase``, of whole quotients."""
    if staircase:
        return lr.StepDecay(learning_rate, decay_steps, math.exp(-decay_rate))
    return lr.NaturalExpDecay(learning_rate, decay_rate / decay_steps)


def inverse_time_decay(learning_rate, decay_steps, decay_rate, staircase=False):
    """``rate / (1 + decay_rate * step / decay_steps)``; with ``staircase``, of whole quotients."""
    if staircase:
        factor = lambda step: 1 / (1 + decay_rate * (step // decay_steps))
        return lr.LambdaDecay(learning_rate, factor)
    return lr.InverseTimeDecay(learning_rate, decay_rate / decay_steps)


def polynomial_decay(
    learning_rate, decay_steps, end_learning_rate=0.0001, power=1.0, cycle=False
):
    """Polynomial decay to ``end_learning_rate`` in ``decay_steps``."""
    return lr.PolynomialDecay(learning_rate, decay_steps, end_learning_rate, power, cycle)


def cosine_decay(learning_rate, step_each_epoch, epochs):
    """``rate * (cos(pi * epoch / epochs) + 1) / 2``, where an epoch has ``step_each_epoch`` steps."""

    def factor(step):
        return (math.cos(math.pi * (step // step_each_epoch) / epochs) + 1) / 2

    return lr.LambdaDecay(learning_rate, factor)


def linear_lr_warmup(learning_rate, warmup_steps, start_lr, end_lr):
    """Linear from ``start_lr`` to ``end_lr``, then ``learning_rate``, a number or a schedule."""
    return lr.LinearWarmup(learning_rate, warmup_steps, start_lr, end_lr)
