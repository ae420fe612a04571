"""Weight decay: ``fleet.regularizer``."""


class L1Decay:
    """Adds ``coeff * sign(w)`` to the gradient."""

    def __init__(self, coeff=0.0):
        self._regularizer = ("l1", coeff)

    def __repr__(self):
        return f"L1Decay({self._regularizer[1]})"


class L2Decay:
    """Adds ``coeff * w`` to the gradient."""

    def __init__(self, coeff=0.0):
        self._regularizer = ("l2", coeff)

    def __repr__(self):
        return f"L2Decay({self._regularizer[1]})"
