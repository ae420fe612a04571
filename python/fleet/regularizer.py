"""Weight decay: ``fleet.regularizer``. ``regularization_coeff`` is the 1.x name of ``coeff``."""

from fleet._absent import absent as _absent


class L1Decay:
    """Adds ``coeff * sign(w)`` to the gradient."""

    def __init__(self, coeff=0.0, regularization_coeff=None):
        self._regularizer = ("l1", coeff if regularization_coeff is None else regularization_coeff)

    def __repr__(self):
        return f"L1Decay({self._regularizer[1]})"


class L2Decay:
    """Adds ``coeff * w`` to the gradient."""

    def __init__(self, coeff=0.0, regularization_coeff=None):
        self._regularizer = ("l2", coeff if regularization_coeff is None else regularization_coeff)

    def __repr__(self):
        return f"L2Decay({self._regularizer[1]})"


L1DecayRegularizer = L1Decay
L2DecayRegularizer = L2Decay

__getattr__ = _absent(__name__)
