"""``fleet.fluid.incubate``: places of the 1.x interface."""

from . import fleet
