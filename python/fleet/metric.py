"""Metrics in the network: ``fleet.metric``."""

from fleet._absent import absent as _absent
from fleet.static import accuracy

__getattr__ = _absent(__name__)
