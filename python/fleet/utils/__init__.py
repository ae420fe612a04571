"""Helpers: ``fleet.utils``."""

from . import unique_name
