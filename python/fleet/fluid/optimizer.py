"""``fleet.fluid.optimizer``: the optimizers with the parameters of the 1.x interface."""

from fleet._absent import absent as _absent
from fleet import optimizer as _optimizer


def _old(name, new):
    """Returns a class that also takes `regularization` and `parameter_list`."""

    def __init__(self, *args, regularization=None, parameter_list=None, **kwargs):
        if regularization is not None:
            kwargs["weight_decay"] = regularization
        if parameter_list is not None:
            kwargs["parameters"] = parameter_list
        new.__init__(self, *args, **kwargs)

    body = {"__init__": __init__, "__doc__": new.__doc__, "__module__": __name__}
    return type(name, (new,), body)


SGD = SGDOptimizer = _old("SGDOptimizer", _optimizer.SGD)
Momentum = MomentumOptimizer = _old("MomentumOptimizer", _optimizer.Momentum)
Adam = AdamOptimizer = _old("AdamOptimizer", _optimizer.Adam)
Adamax = AdamaxOptimizer = _old("AdamaxOptimizer", _optimizer.Adamax)
Adagrad = AdagradOptimizer = _old("AdagradOptimizer", _optimizer.Adagrad)
Adadelta = AdadeltaOptimizer = _old("AdadeltaOptimizer", _optimizer.Adadelta)
RMSProp = RMSPropOptimizer = _old("RMSPropOptimizer", _optimizer.RMSProp)
Lamb = LambOptimizer = _old("LambOptimizer", _optimizer.Lamb)
LarsMomentum = LarsMomentumOptimizer = _old("LarsMomentumOptimizer", _optimizer.LarsMomentum)


__getattr__ = _absent(__name__)
