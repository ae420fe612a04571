"""An iterator that runs in a thread, ahead of the thread that uses it."""

import collections
import itertools
import os
import threading


class Prefetch:
    """Iterates over what ``make()`` iterates over, and keeps up to ``capacity`` items ready.

    An exception of the iterator is raised in the thread that uses it, after the items before it.
    """

    def __init__(self, make, capacity):
        self._state = _State(capacity)
        self._process = os.getpid()
        thread = threading.Thread(
            target=_fill, args=(make, self._state), name="fleet-loader", daemon=True
        )
        thread.start()

    def __iter__(self):
        return self

    def __next__(self):
        if self._process != os.getpid():
            raise RuntimeError(
                "the pass of a loader belongs to the process that forked this one\n  "
                "help: start a pass after the fork"
            )
        return self._state.take()

    def close(self):
        """Ends the thread at its next item."""
        self._state.stop()

    def __del__(self):
        self.close()


class _State:
    def __init__(self, capacity):
        self.capacity = capacity
        self.items = collections.deque()
        self.changed = threading.Condition()
        self.stopped = False
        self.ended = False
        self.error = None

    def put(self, item):
        """Returns whether the items are still wanted."""
        with self.changed:
            while len(self.items) >= self.capacity and not self.stopped:
                self.changed.wait()
            self.items.append(item)
            self.changed.notify_all()
            return not self.stopped

    def end(self, error=None):
        with self.changed:
            self.ended, self.error = True, error
            self.changed.notify_all()

    def take(self):
        with self.changed:
            while not (self.items or self.ended or self.stopped):
                self.changed.wait()
            if self.items and not self.stopped:
                self.changed.notify_all()
                return self.items.popleft()
            error, self.error = self.error, None
        if error is not None and not self.stopped:
            raise error
        raise StopIteration

    def stop(self):
        with self.changed:
            self.stopped = True
            self.items.clear()
            self.changed.notify_all()


def _fill(make, state):
    error = None
    try:
        items = make()
        try:
            for item in items:
                if not state.put(item):
                    break
        finally:
            if hasattr(items, "close"):
                items.close()
    except BaseException as raised:
        error = raised
    state.end(error)


def map_closed(function, items):
    """Like `map`, with a method `close`."""
    for item in items:
        yield function(item)


def in_threads(function, items, threads, begin=None):
    """Like `map_closed`, by several threads, in the order of the items. ``begin`` is called with
    the number of each thread in it."""
    from concurrent.futures import ThreadPoolExecutor

    numbers = itertools.count()
    first = None if begin is None else lambda: begin(next(numbers))
    pool = ThreadPoolExecutor(threads, "fleet-loader-worker", first)
    pending = collections.deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for left in pending:
            left.cancel()
        pool.shutdown(wait=False)
