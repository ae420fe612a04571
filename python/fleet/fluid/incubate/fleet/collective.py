"""``from paddle.fluid.incubate.fleet.collective import fleet, DistributedStrategy``."""

from fleet.distributed import fleet
from fleet.distributed.fleet import DistributedStrategy
