"""``fleet.fluid.incubate.fleet``: places of the 1.x interface."""

from . import collective
