"""Readers with the shapes of the public data sets: ``fleet.dataset``.

Nothing is downloaded: samples are generated, the same in every run, and a network can learn them.
``SAMPLES`` of a module has the numbers of samples of its parts. They are those of the public data
set, and may be assigned.
"""

from . import cifar, flowers, imdb, imikolov, mnist, uci_housing
