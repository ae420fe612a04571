"""``fleet.fluid.clip``."""

from fleet._absent import absent as _absent
from fleet.nn import ClipGradByGlobalNorm as GradientClipByGlobalNorm
from fleet.nn import ClipGradByNorm as GradientClipByNorm
from fleet.nn import ClipGradByValue as GradientClipByValue

__getattr__ = _absent(__name__)
