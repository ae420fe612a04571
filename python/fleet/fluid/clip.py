"""``fleet.fluid.clip``."""

from fleet.nn import ClipGradByGlobalNorm as GradientClipByGlobalNorm
from fleet.nn import ClipGradByNorm as GradientClipByNorm
from fleet.nn import ClipGradByValue as GradientClipByValue
