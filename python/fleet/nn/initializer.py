"""Initial values of parameters: ``fleet.nn.initializer``."""

from fleet._absent import absent as _absent


class Initializer:
    """Base of the initializers. `_initializer` is the kind and its numbers, as Rust reads them."""

    def __repr__(self):
        kind, numbers = self._initializer
        return f"{type(self).__name__}({', '.join(map(str, numbers))})"


class Constant(Initializer):
    """One value."""

    def __init__(self, value=0.0):
        self._initializer = ("constant", [value])


class Uniform(Initializer):
    """Uniform between two values."""

    def __init__(self, low=-1.0, high=1.0, name=None):
        self._initializer = ("uniform", [low, high])


class Normal(Initializer):
    """Normal with a mean and a standard deviation."""

    def __init__(self, mean=0.0, std=1.0, name=None):
        self._initializer = ("normal", [mean, std])


class TruncatedNormal(Initializer):
    """Normal, with values beyond two standard deviations redrawn."""

    def __init__(self, mean=0.0, std=1.0, name=None):
        self._initializer = ("truncated_normal", [mean, std])


class XavierUniform(Initializer):
    """Uniform in ``±sqrt(6 / (fan_in + fan_out))``."""

    def __init__(self, fan_in=None, fan_out=None, name=None):
        self._initializer = ("xavier_uniform", [fan_in, fan_out])


class XavierNormal(Initializer):
    """Normal with standard deviation ``sqrt(2 / (fan_in + fan_out))``."""

    def __init__(self, fan_in=None, fan_out=None, name=None):
        self._initializer = ("xavier_normal", [fan_in, fan_out])


class KaimingUniform(Initializer):
    """Uniform in ``±sqrt(6 / fan_in)``."""

    def __init__(self, fan_in=None):
        self._initializer = ("kaiming_uniform", [fan_in])


class KaimingNormal(Initializer):
    """Normal with standard deviation ``sqrt(2 / fan_in)``."""

    def __init__(self, fan_in=None):
        self._initializer = ("kaiming_normal", [fan_in])


class Assign(Initializer):
    """The given values."""

    def __init__(self, value, name=None):
        import numpy as np

        self._initializer = ("assign", np.asarray(value, dtype="float64").ravel().tolist())

    def __repr__(self):
        return f"Assign({len(self._initializer[1])} values)"


__getattr__ = _absent(__name__)
