from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet.dataset import cifar as cifar
from fleet.dataset import flowers as flowers
from fleet.dataset import imdb as imdb
from fleet.dataset import imikolov as imikolov
from fleet.dataset import mnist as mnist
from fleet.dataset import uci_housing as uci_housing


