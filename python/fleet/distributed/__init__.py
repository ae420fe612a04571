"""Jobs of several processes: ``fleet.distributed``."""

from fleet._absent import absent as _absent
from fleet._attributes import CountFilterEntry, ProbabilityEntry, ShowClickEntry

from fleet._datasets import InMemoryDataset, QueueDataset

from . import fleet


def get_rank():
    """Returns the rank of this process among the workers, also before ``fleet.init``."""
    return _roles()._worker_index()


def get_world_size():
    """Returns the number of workers, also before ``fleet.init``."""
    return _roles()._worker_num()


def _roles():
    return fleet.PaddleCloudRoleMaker(is_collective=True)


__getattr__ = _absent(__name__)
