"""Messages of Fleet as records of the logger ``fleet``."""

import atexit
import logging
import sys

from fleet import _fleet

logger = logging.getLogger("fleet")


class _LastResort(logging.Handler):
    """Prints to the standard error, unless the script has a handler for the root or for ``fleet``."""

    def emit(self, record):
        if not logging.getLogger().handlers and logger.handlers == [self]:
            try:
                print(f"fleet: {record.getMessage()}", file=sys.stderr, flush=True)
            except (OSError, ValueError):
                # A closed standard error: nothing else can show it.
                pass


#: Beginnings of messages of level DEBUG, which every `minimize` of a job has: its strategy as a
#: table, the executor's settings, and the place of a process that is a job by itself.
_DETAILS = ("strategy\n", "in force: ", "1 worker, 1 server, ")


def _log(text):
    logger.log(logging.DEBUG if text.startswith(_DETAILS) else logging.INFO, "%s", text)


def start():
    """Passes the messages of Fleet to the logger."""
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logger.addHandler(_LastResort())
    _fleet.log_notes(_log)
    atexit.register(_fleet.end_notes)
