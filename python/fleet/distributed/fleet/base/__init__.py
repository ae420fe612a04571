"""``fleet.distributed.fleet.base``."""

from . import role_maker
