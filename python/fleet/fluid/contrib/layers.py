"""``fleet.fluid.contrib.layers``."""

from fleet.static.nn import sparse_embedding
