from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._framework import Variable as Variable
from fleet._framework import default_main_program as default_main_program
from fleet._framework import default_startup_program as default_startup_program
from fleet._framework import place as place
from fleet._framework import undone_on_error as undone_on_error

def cond(pred: Any, true_fn: Any = ..., false_fn: Any = ..., name: str | None = ...) -> Any: ...
