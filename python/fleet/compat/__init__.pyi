from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._absent import UnsupportedModule as UnsupportedModule
from fleet._absent import advice as advice
from fleet._absent import nearest as nearest
from fleet._absent import set_root as set_root
from fleet._absent import spelled as spelled
from fleet.compat import fleetx as fleetx
from fleet.compat import plsc as plsc
import builtins

VERSION: str
class _Paddle(builtins.module):
    def __init__(self, name: str) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
def install() -> None: ...
def path() -> Any: ...
def target(name: str) -> Any: ...
def uninstall() -> None: ...
