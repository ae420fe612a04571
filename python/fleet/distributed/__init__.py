"""Jobs of several processes: ``fleet.distributed``."""

from fleet._absent import absent as _absent
from fleet._attributes import CountFilterEntry, ProbabilityEntry, ShowClickEntry

from fleet._datasets import InMemoryDataset, QueueDataset

from . import fleet

__getattr__ = _absent(__name__)
