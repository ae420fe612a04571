"""``fleet.distributed.fleet.base.role_maker``."""

from fleet.distributed.fleet.role_maker import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
