"""``fleet.fluid.contrib``."""

from fleet.static.nn import sparse_embedding

from . import layers
