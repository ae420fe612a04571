"""Weight decay: ``fleet.regularizer``."""


class L1Decay:
    """Adds ``coeff * sign(w)`` to the gradient."""

    def __init__(self, coeff=0.0):
        self._regularizer = ("l1", coeff)


class L2Decay:
    """Adds ``coeff * w`` to the gradient."""

    def __init__(self, coeff=0.0):
        self._regularizer = ("l2", coeff)
