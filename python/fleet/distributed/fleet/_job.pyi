from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet.distributed.fleet.role_maker import PaddleCloudRoleMaker as PaddleCloudRoleMaker
from fleet.distributed.fleet.role_maker import Role as Role
from fleet.distributed.fleet.strategy import DistributedStrategy as DistributedStrategy

def init(role_maker: Any = ..., is_collective: bool = ..., strategy: Any = ...) -> None: ...
def joined() -> Any: ...
def topology() -> Any: ...
