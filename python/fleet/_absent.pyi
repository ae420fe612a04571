from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
import builtins

class Unsupported(builtins.AttributeError, builtins.NotImplementedError): ...
def absent(module: Any, lazy: Any = ...) -> Any: ...
def advice(module: Any, name: str) -> Any: ...
