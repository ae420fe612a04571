from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet.distributed import fleet as fleet
from fleet.distributed.fleet.strategy import DistributedStrategy as DistributedStrategy


