"""``fleet.fluid.backward``."""

from fleet._backward import append_backward, gradients
