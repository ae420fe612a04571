"""`fleetx` in the processes that a script under ``python -m fleet.compat`` starts."""

import importlib
import sys

from fleet import compat

del sys.modules[__name__]
compat.install()
sys.modules[__name__] = importlib.import_module(__name__)
