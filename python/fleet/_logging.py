"""Messages of Fleet as records of the logger ``fleet``."""

import atexit
import logging
import sys

from fleet import _fleet

logger = logging.getLogger("fleet")


class _LastResort(logging.Handler):
    """Prints to the standard error, unless the script has configured logging."""

    def emit(self, record):
        if not logging.getLogger().handlers:
            try:
                print(f"fleet: {record.getMessage()}", file=sys.stderr, flush=True)
            except (OSError, ValueError):
                # A closed standard error: nothing else can show it.
                pass


def _log(text):
    logger.info("%s", text)


def start():
    """Passes the messages of Fleet to the logger."""
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logger.addHandler(_LastResort())
    _fleet.log_notes(_log)
    atexit.register(_fleet.end_notes)
