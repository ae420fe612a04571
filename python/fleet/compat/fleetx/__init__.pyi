from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet.compat.fleetx import applications as applications
from fleet.compat.fleetx import utils as utils

def parse_train_configs() -> Any: ...
