"""Metrics in the network: ``fleet.metric``."""

from fleet.static import accuracy
