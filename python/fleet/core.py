"""``fleet.core``: what the documents use of the core module."""


class EOFException(Exception):
    """A loader that `exe.run` takes its batches from has no more: call its `reset`."""
