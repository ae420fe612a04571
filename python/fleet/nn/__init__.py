"""Layers as objects, initializers, gradient clipping and functions: ``fleet.nn``."""

from fleet._absent import absent as _absent
from . import functional, initializer
from .layer import Conv2D, Embedding, Layer, LayerList, Linear, ReLU, Sequential


class _Clip:
    def __repr__(self):
        return f"{type(self).__name__}({', '.join(map(str, self._grad_clip[1]))})"


class ClipGradByValue(_Clip):
    """Limits each element of the gradients; ``min`` is ``-max`` by default."""

    def __init__(self, max, min=None):
        self._grad_clip = ("value", [-max if min is None else min, max])

    def __repr__(self):
        min, max = self._grad_clip[1]
        return f"ClipGradByValue(max={max}, min={min})"


class ClipGradByNorm(_Clip):
    """Limits the norm of each gradient."""

    def __init__(self, clip_norm):
        self._grad_clip = ("norm", [clip_norm])


class ClipGradByGlobalNorm(_Clip):
    """Limits the norm of all gradients together."""

    def __init__(self, clip_norm, group_name="default_group"):
        self._grad_clip = ("global_norm", [clip_norm])

__getattr__ = _absent(__name__)
