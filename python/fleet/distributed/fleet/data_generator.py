"""``fleet.distributed.fleet.data_generator``."""

from fleet._data_generator import (
    DataGenerator,
    MultiSlotDataGenerator,
    MultiSlotStringDataGenerator,
)
