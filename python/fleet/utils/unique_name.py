"""Names of variables: ``fleet.utils.unique_name``.

All programs count automatic names together, since their variables may share a scope. A guard
affects its own thread.
"""

import contextlib

from fleet._absent import spelled as _spelled
from fleet import _fleet
from fleet._framework import _set, _state


@contextlib.contextmanager
def guard(new_generator=None):
    """Counts automatic names from 0 in the block: two networks that are written in blocks of their
    own have the same names, and share the parameters of a scope."""
    if new_generator is not None:
        raise NotImplementedError(
            _spelled(
                "unique_name.guard does not support a prefix\n  help: use fleet.static.name_scope"
            )
        )
    with _set(names=_fleet.NamesCell()):
        yield


def generate(key):
    """Returns the next automatic name for a key."""
    return _state.names.generate(key)
