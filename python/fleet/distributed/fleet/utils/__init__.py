"""``fleet.distributed.fleet.utils``."""

from . import ps_util
from .ps_util import DistributedInfer
