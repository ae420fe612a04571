from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fleet._types import Array, Attr, Feeds, LearningRate, Operand, Path
from fleet._framework import Variable as Variable
from fleet._framework import call as call

class Resnet50:
    inputs: Sequence[Variable]
    target: Any
    def __init__(self, classes: int = ..., size: int = ...) -> None: ...
    def load_imagenet_from_file(
        self,
        filelist: Sequence[str],
        batch_size: int = ...,
        use_dali: bool = ...,
    ) -> Any: ...
    def get_train_dataloader(self, local_path: Any, batch_size: int = ...) -> Any: ...
    def get_val_dataloader(self, local_path: Any, batch_size: int = ...) -> Any: ...
class Word2vec:
    cost: Any
    inputs: Sequence[Variable]
    def __init__(self, vocabulary: int = ..., width: int = ..., negatives: int = ...) -> None: ...
    def load_dataset_from_file(
        self,
        train_files_path: Any,
        dict_path: Any = ...,
        batch_size: int = ...,
    ) -> Any: ...
