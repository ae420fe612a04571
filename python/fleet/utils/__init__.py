"""Helpers: ``fleet.utils``."""

from fleet._absent import absent as _absent
from . import unique_name

__getattr__ = _absent(__name__)
