"""Jobs of several processes: ``fleet.distributed``."""

from fleet._absent import absent as _absent
from fleet._attributes import CountFilterEntry, ProbabilityEntry, ShowClickEntry

from . import fleet

__getattr__ = _absent(__name__)
