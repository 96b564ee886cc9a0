"""Events that come more than once: hooks are installed twice, an agent repeats itself.

An event with an id of its own (of the prompt, the tool call, the sub-agent) is the same one
whenever it comes again. Of the others one is a repetition when nothing else came of its session in
between.

Threading: for any thread.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST = 500


class Repeats(Generic[T]):
    """What was done at the last events."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: set[Hashable] = set()
        self._done: OrderedDict[Hashable, T] = OrderedDict()
        self._last: dict[str, Hashable] = {}

    def enter(self, session: str, key: Hashable, patience: float) -> tuple[T | None, bool]:
        """Before an event is worked on: (what was done when it came before, whether it is the one
        that came last). While the same one is worked on this waits, at most `patience` seconds.
        Who gets no outcome has to call `leave`."""
        end = time.monotonic() + patience
        with self._changed:
            while key in self._under_way and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            self._under_way.add(key)
            found = self._done.get(key)
            if found is not None:
                self._under_way.discard(key)
            return found, self._last.get(session) == key

    def leave(self, session: str, key: Hashable, outcome: T | None, *, lasting: bool) -> None:
        """After it. outcome: None if it failed, and must be done again when it comes again.
        lasting: whether it has an id of its own."""
        with self._changed:
            self._under_way.discard(key)
            if outcome is not None:
                self._last[session] = key
                if lasting:
                    self._done[key] = outcome
                    while len(self._done) > _MOST:
                        self._done.popitem(last=False)
                while len(self._last) > _MOST:
                    del self._last[next(iter(self._last))]
            self._changed.notify_all()
