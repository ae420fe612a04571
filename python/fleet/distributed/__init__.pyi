from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._attributes import CountFilterEntry as CountFilterEntry
from fleet._attributes import ProbabilityEntry as ProbabilityEntry
from fleet._attributes import ShowClickEntry as ShowClickEntry
from fleet._datasets import InMemoryDataset as InMemoryDataset
from fleet._datasets import QueueDataset as QueueDataset
from fleet.distributed import fleet as fleet

def get_rank() -> Any: ...
def get_world_size() -> Any: ...
