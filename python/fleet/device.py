"""What scripts ask about devices: ``fleet.device``. Programs run on the CPU."""

from fleet._absent import absent as _absent
from fleet._executor import get_device, is_compiled_with_cuda, set_device

__getattr__ = _absent(__name__)
