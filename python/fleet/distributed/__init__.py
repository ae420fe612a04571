"""Jobs of several processes: ``fleet.distributed``."""

from fleet._attributes import CountFilterEntry, ProbabilityEntry, ShowClickEntry

from . import fleet
