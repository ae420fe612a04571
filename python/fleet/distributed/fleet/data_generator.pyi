from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._data_generator import DataGenerator as DataGenerator
from fleet._data_generator import MultiSlotDataGenerator as MultiSlotDataGenerator
from fleet._data_generator import MultiSlotStringDataGenerator as MultiSlotStringDataGenerator


