from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._framework import call as call
from fleet._texts import help_of as help_of

def define(module: Any, spellings: Any) -> None: ...
def old_spellings(function: Callable[..., Any]) -> Any: ...
