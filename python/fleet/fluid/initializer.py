"""``fleet.fluid.initializer``."""

from fleet._absent import absent as _absent
from fleet.nn.initializer import Constant, Normal, TruncatedNormal, Uniform
from fleet.nn.initializer import Assign as NumpyArrayInitializer
from fleet.nn.initializer import KaimingNormal, KaimingUniform, XavierNormal, XavierUniform

ConstantInitializer = Constant
NormalInitializer = Normal
TruncatedNormalInitializer = TruncatedNormal
UniformInitializer = Uniform


def Xavier(uniform=True, fan_in=None, fan_out=None, seed=0):
    """Xavier, uniform or normal."""
    return (XavierUniform if uniform else XavierNormal)(fan_in, fan_out)


def MSRA(uniform=True, fan_in=None, seed=0):
    """Kaiming, uniform or normal."""
    return (KaimingUniform if uniform else KaimingNormal)(fan_in)


XavierInitializer = Xavier
MSRAInitializer = MSRA


__getattr__ = _absent(__name__)
