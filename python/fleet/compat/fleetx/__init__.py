"""``fleetx``: the models and helpers that the documents use.

Data is generated on this machine, whatever file is named.
"""

import argparse

from fleet._absent import absent as _absent

from . import applications, utils


def parse_train_configs():
    """Reads the settings of a training from the command line. Returns them as attributes."""
    parser = argparse.ArgumentParser("fleetx", allow_abbrev=False)
    add = parser.add_argument
    add("--lr", type=float, default=0.1, help="learning rate")
    add("--momentum", type=float, default=0.9, help="momentum")
    add("--weight_decay", type=float, default=1e-4, help="coefficient of the L2 decay")
    add("--batch_size", type=int, default=32, help="samples of a batch of this worker")
    add("--epoch", type=int, default=1, help="passes over the data")
    return parser.parse_args()


__getattr__ = _absent(__name__)
