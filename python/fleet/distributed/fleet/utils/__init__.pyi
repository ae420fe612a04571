from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet.distributed.fleet.utils import ps_util as ps_util
from fleet.distributed.fleet.utils.ps_util import DistributedInfer as DistributedInfer


