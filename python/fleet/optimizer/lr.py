"""Learning rates that change: ``fleet.optimizer.lr``.

A schedule is part of the program. It advances with every run of the main program, and resumes from
a checkpoint.
"""

from fleet._absent import absent as _absent
from fleet._executor import global_scope

#: The variable that counts the runs of a program with a schedule.
_COUNTER = "@LR_DECAY_COUNTER@"


class LRScheduler:
    """Base of the schedules."""

    def __init__(self, kind, last_epoch, **settings):
        if last_epoch != -1:
            raise NotImplementedError(
                "last_epoch is not supported\n  "
                "help: load the program's variables, which include the step counter"
            )
        self._schedule = (kind, settings)
        self._runs = 0

    def step(self, epoch=None):
        """Does nothing after each run of the main program, which has advanced the schedule itself.

        A call after several runs is an error: the rate has changed in each of them.
        """
        if epoch is not None:
            raise NotImplementedError(
                "step(): epoch is not supported: a schedule advances with every run of the main "
                "program\n  help: leave it out"
            )
        scope = global_scope()
        if _COUNTER not in scope:
            return
        # The counter has the number of the last run, and -1 before the first.
        runs = int(scope[_COUNTER].item()) + 1
        since, self._runs = runs - self._runs, runs
        if since > 1:
            raise NotImplementedError(
                f"step() was called after {since} runs: a schedule advances with every run of the "
                "main program\n  "
                "help: give the schedule's settings in runs, not in epochs; step() may be left out"
            )

    def get_lr(self):
        """Returns the rate that the schedule starts from."""
        rate = self._schedule[1].get("learning_rate")
        return rate if isinstance(rate, (int, float)) else None

    def __repr__(self):
        settings = ", ".join(f"{name}={value!r}" for name, value in self._schedule[1].items())
        return f"{type(self).__name__}({settings})"


class NoamDecay(LRScheduler):
    """``rate * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)``."""

    def __init__(self, d_model, warmup_steps, learning_rate=1.0, last_epoch=-1, verbose=False):
        super().__init__(
            "noam",
            last_epoch,
            d_model=d_model,
            warmup_steps=warmup_steps,
            learning_rate=learning_rate,
        )


class ExponentialDecay(LRScheduler):
    """``rate * gamma^step``."""

    def __init__(self, learning_rate, gamma, last_epoch=-1, verbose=False):
        super().__init__("exponential", last_epoch, learning_rate=learning_rate, gamma=gamma)


class NaturalExpDecay(LRScheduler):
    """``rate * exp(-gamma * step)``."""

    def __init__(self, learning_rate, gamma, last_epoch=-1, verbose=False):
        super().__init__("natural_exp", last_epoch, learning_rate=learning_rate, gamma=gamma)


class InverseTimeDecay(LRScheduler):
    """``rate / (1 + gamma * step)``."""

    def __init__(self, learning_rate, gamma, last_epoch=-1, verbose=False):
        super().__init__("inverse_time", last_epoch, learning_rate=learning_rate, gamma=gamma)


class PiecewiseDecay(LRScheduler):
    """``values[i]`` before step ``boundaries[i]``, then the last value."""

    def __init__(self, boundaries, values, last_epoch=-1, verbose=False):
        super().__init__(
            "piecewise", last_epoch, boundaries=list(boundaries), values=list(values)
        )


class PolynomialDecay(LRScheduler):
    """Polynomial decay from ``learning_rate`` to ``end_lr`` in ``decay_steps``."""

    def __init__(
        self,
        learning_rate,
        decay_steps,
        end_lr=0.0001,
        power=1.0,
        cycle=False,
        last_epoch=-1,
        verbose=False,
    ):
        super().__init__(
            "polynomial",
            last_epoch,
            learning_rate=learning_rate,
            decay_steps=decay_steps,
            end_lr=end_lr,
            power=power,
            cycle=cycle,
        )


class CosineAnnealingDecay(LRScheduler):
    """Half a cosine wave from ``learning_rate`` to ``eta_min`` in ``T_max`` steps."""

    def __init__(self, learning_rate, T_max, eta_min=0, last_epoch=-1, verbose=False):
        super().__init__(
            "cosine", last_epoch, learning_rate=learning_rate, T_max=T_max, eta_min=eta_min
        )


class LinearWarmup(LRScheduler):
    """Linear from ``start_lr`` to ``end_lr``, then ``learning_rate``, a number or a schedule."""

    def __init__(
        self, learning_rate, warmup_steps, start_lr, end_lr, last_epoch=-1, verbose=False
    ):
        super().__init__(
            "linear_warmup",
            last_epoch,
            learning_rate=learning_rate,
            warmup_steps=warmup_steps,
            start_lr=start_lr,
            end_lr=end_lr,
        )


class StepDecay(LRScheduler):
    """``rate * gamma^floor(step / step_size)``."""

    def __init__(self, learning_rate, step_size, gamma=0.1, last_epoch=-1, verbose=False):
        super().__init__(
            "step", last_epoch, learning_rate=learning_rate, step_size=step_size, gamma=gamma
        )


class MultiStepDecay(LRScheduler):
    """``rate * gamma^(number of milestones passed)``."""

    def __init__(self, learning_rate, milestones, gamma=0.1, last_epoch=-1, verbose=False):
        super().__init__(
            "multi_step",
            last_epoch,
            learning_rate=learning_rate,
            milestones=list(milestones),
            gamma=gamma,
        )


class LambdaDecay(LRScheduler):
    """``rate * lr_lambda(step)``, computed by Python before each run."""

    def __init__(self, learning_rate, lr_lambda, last_epoch=-1, verbose=False):
        super().__init__("lambda", last_epoch, learning_rate=learning_rate, lr_lambda=lr_lambda)


__getattr__ = _absent(__name__)
