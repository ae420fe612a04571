from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet.compat.plsc import config as config
from fleet.compat.plsc import entry as entry
from fleet.compat.plsc import models as models
from fleet.compat.plsc.entry import Entry as Entry


