"""``fleet.core``: what the documents use of the core module."""

from fleet._absent import absent as _absent


class EOFException(Exception):
    """A loader that `exe.run` takes its batches from has no more: call its `reset`."""


__getattr__ = _absent(__name__)
