"""``plsc``: the classifier of many classes that the documents use.

::

    from plsc import Entry

    entry = Entry()
    entry.set_class_num(85742)
    entry.train_reader = batches  # a function that returns an iterator of [(image, label), ..]
    entry.train()

Started as ``fleetrun --compat=paddle --nproc_per_node=4 train.py``, the workers divide the classes.
"""

from fleet._absent import absent as _absent

from . import config, models
from .entry import Entry

__getattr__ = _absent(__name__)
