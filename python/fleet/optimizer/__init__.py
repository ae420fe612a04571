"""Optimizers: ``fleet.optimizer``. Their formulas are in the page of layers."""

from fleet._absent import absent as _absent
from fleet import _fleet
from fleet._backward import backward as _backward
from fleet._backward import names as _names
from fleet._framework import Variable, all_or_none, default_startup_program, place
from fleet._texts import help_of_optimizer as _help_of

from . import lr


def _listed(parameters):
    if isinstance(parameters, (str, Variable)) or not hasattr(parameters, "__iter__"):
        raise TypeError(f"parameters: expected a list of variables, got {parameters!r}")
    return list(parameters)


class Optimizer:
    """Base of the optimizers."""

    _rule = None

    def __init__(self, learning_rate, parameters, weight_decay, grad_clip, **rule):
        self._learning_rate = learning_rate
        self._parameters = None if parameters is None else _listed(parameters)
        self._weight_decay = weight_decay
        self._grad_clip = grad_clip
        self._numbers = rule
        if self._rule is not None:
            _fleet.check_optimizer(self)

    def _settings(self):
        """The settings, as Rust reads them."""
        return {
            "rule": self._rule,
            "learning_rate": self._learning_rate,
            "parameters": None if self._parameters is None else _names("parameters", self._parameters),
            "weight_decay": self._weight_decay,
            "grad_clip": self._grad_clip,
            **self._numbers,
        }

    def __repr__(self):
        settings = {"learning_rate": self._learning_rate, **self._numbers}
        for name in ("parameters", "weight_decay", "grad_clip"):
            value = getattr(self, f"_{name}")
            if value is not None:
                settings[name] = _names(name, value) if name == "parameters" else value
        shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        return f"{type(self).__name__}({shown})"

    def minimize(self, loss, startup_program=None, parameters=None, no_grad_set=None):
        """Appends the backward pass and the updates. Returns the names of the ops of the updates,
        and the parameters with their gradients."""
        if not isinstance(loss, Variable):
            raise TypeError(f"loss: expected a Variable, got {loss!r}")
        with all_or_none(loss.program, startup_program or default_startup_program()):
            pairs = self.backward(loss, startup_program, parameters, no_grad_set)
            return self._apply(pairs, loss.program, startup_program), pairs

    def backward(
        self, loss, startup_program=None, parameters=None, no_grad_set=None, callbacks=None
    ):
        """Appends the backward pass and returns the parameters with their gradients."""
        parameters = self._parameters if parameters is None else parameters
        return _backward(loss, startup_program, parameters, no_grad_set)

    def apply_gradients(self, params_grads):
        """Appends clipping and updates. Returns the names of their ops."""
        pairs = list(params_grads)
        if not pairs:
            raise ValueError("params_grads: expected one pair or more")
        return self._apply(pairs, pairs[0][0].program, None)

    def _apply(self, pairs, program, startup):
        startup = startup or default_startup_program()
        before = len(program.op_names)
        ids = [(param._id, grad._id) for param, grad in pairs]
        rate = _fleet.apply_gradients(program._cell, startup._cell, place(), self, ids)
        self._rate = Variable(program, rate)
        return program.op_names[before:]

    def get_lr(self):
        """Returns the learning rate of the first step."""
        rate = self._learning_rate
        return rate if isinstance(rate, (int, float)) else rate.get_lr()


class SGD(Optimizer):
    """Stochastic gradient descent."""

    _rule = "sgd"

    def __init__(
        self, learning_rate=0.001, parameters=None, weight_decay=None, grad_clip=None, name=None
    ):
        super().__init__(learning_rate, parameters, weight_decay, grad_clip)


class Momentum(Optimizer):
    """Gradient descent with momentum."""

    _rule = "momentum"

    def __init__(
        self,
        learning_rate=0.001,
        momentum=0.9,
        parameters=None,
        use_nesterov=False,
        weight_decay=None,
        grad_clip=None,
        name=None,
    ):
        super().__init__(
            learning_rate,
            parameters,
            weight_decay,
            grad_clip,
            momentum=momentum,
            use_nesterov=use_nesterov,
        )


class Adam(Optimizer):
    """Adam."""

    _rule = "adam"

    def __init__(
        self,
        learning_rate=0.001,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        parameters=None,
        weight_decay=None,
        grad_clip=None,
        lazy_mode=False,
        name=None,
    ):
        super().__init__(
            learning_rate,
            parameters,
            weight_decay,
            grad_clip,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            lazy_mode=lazy_mode,
        )


class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    _rule = "adamw"

    def __init__(
        self,
        learning_rate=0.001,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        parameters=None,
        weight_decay=0.01,
        grad_clip=None,
        lazy_mode=False,
        name=None,
    ):
        super().__init__(
            learning_rate,
            parameters,
            None,
            grad_clip,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            coeff=weight_decay,
            lazy_mode=lazy_mode,
        )


class Adamax(Optimizer):
    """Adamax."""

    _rule = "adamax"

    def __init__(
        self,
        learning_rate=0.001,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        parameters=None,
        weight_decay=None,
        grad_clip=None,
        name=None,
    ):
        super().__init__(
            learning_rate,
            parameters,
            weight_decay,
            grad_clip,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
        )


class Adagrad(Optimizer):
    """Adagrad."""

    _rule = "adagrad"

    def __init__(
        self,
        learning_rate,
        epsilon=1e-6,
        parameters=None,
        weight_decay=None,
        grad_clip=None,
        name=None,
        initial_accumulator_value=0.0,
    ):
        super().__init__(
            learning_rate,
            parameters,
            weight_decay,
            grad_clip,
            epsilon=epsilon,
            initial_accumulator_value=initial_accumulator_value,
        )


class Adadelta(Optimizer):
    """Adadelta."""

    _rule = "adadelta"

    def __init__(
        self,
        learning_rate=0.001,
        epsilon=1e-6,
        rho=0.95,
        parameters=None,
        weight_decay=None,
        grad_clip=None,
        name=None,
    ):
        super().__init__(
            learning_rate, parameters, weight_decay, grad_clip, epsilon=epsilon, rho=rho
        )


class RMSProp(Optimizer):
    """RMSProp."""

    _rule = "rmsprop"

    def __init__(
        self,
        learning_rate,
        rho=0.95,
        epsilon=1e-6,
        momentum=0.0,
        centered=False,
        parameters=None,
        weight_decay=None,
        grad_clip=None,
        name=None,
    ):
        super().__init__(
            learning_rate,
            parameters,
            weight_decay,
            grad_clip,
            rho=rho,
            epsilon=epsilon,
            momentum=momentum,
            centered=centered,
        )


class Lamb(Optimizer):
    """LAMB."""

    _rule = "lamb"

    def __init__(
        self,
        learning_rate=0.001,
        lamb_weight_decay=0.01,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-6,
        parameters=None,
        grad_clip=None,
        name=None,
        exclude_from_weight_decay=(),
    ):
        super().__init__(
            learning_rate,
            parameters,
            None,
            grad_clip,
            lamb_weight_decay=lamb_weight_decay,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            exclude_from_weight_decay=list(exclude_from_weight_decay),
        )


class LarsMomentum(Optimizer):
    """LARS."""

    _rule = "lars"

    def __init__(
        self,
        learning_rate=0.001,
        momentum=0.9,
        lars_coeff=0.001,
        lars_weight_decay=0.0005,
        parameters=None,
        weight_decay=None,
        grad_clip=None,
        name=None,
        exclude_from_weight_decay=(),
        epsilon=0.0,
    ):
        super().__init__(
            learning_rate,
            parameters,
            weight_decay,
            grad_clip,
            momentum=momentum,
            lars_coeff=lars_coeff,
            lars_weight_decay=lars_weight_decay,
            epsilon=epsilon,
            exclude_from_weight_decay=list(exclude_from_weight_decay),
        )


def _describe(classes):
    formulas = {name.lower(): text for name, text in _fleet.layer_docs().items()}
    for kind in classes:
        code = kind.__init__.__code__
        text = _help_of(formulas[kind.__name__.lower()], code.co_varnames[1 : code.co_argcount])
        kind.__doc__ = kind.__init__.__doc__ = text


_describe(Optimizer.__subclasses__())

__getattr__ = _absent(__name__)
