"""The version of the package."""

from fleet import _fleet

__version__ = _fleet.VERSION
