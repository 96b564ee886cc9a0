"""When the daemon makes a checkpoint by itself, and why: no clock, no threads, no store.

The timer tells it four times a second what it sees; it says what is due. Moments are seconds of a
monotonic clock, which neither a set clock nor a suspended machine makes jump.

Threading: one thread at a time.
"""

from __future__ import annotations

import math

from cowfs.service.config import Checkpoints

RETRY_SECONDS = 300.0
"""After a checkpoint that failed."""


class Schedule:
    """The schedule of one workspace. `policy` may be replaced at any time."""

    def __init__(self, policy: Checkpoints) -> None:
        self.policy = policy
        self._epoch = -1
        self._sealed = self._last = self._retry = -math.inf
        self._first: float | None = None
        self._changes = self._files = 0

    def observe(self, moment: float, epoch: int, changes: int, files: int) -> None:
        """What there is now: the open epoch, how many changes it has seen, and how many files it
        has changed. A new epoch is what every checkpoint and restore begins, whoever made it."""
        fresh = epoch != self._epoch
        if fresh:
            self._sealed = moment if self._epoch >= 0 else -math.inf
            self._epoch, self._changes, self._first = epoch, 0, None
        if changes != self._changes or (fresh and files):
            self._changes, self._last = changes, moment
            if self._first is None:
                self._first = moment
        self._files = files

    def due(self, moment: float) -> str:
        """Why a checkpoint is to be made now; "" when none is."""
        policy = self.policy
        if self._first is None or moment < self._retry or moment - self._sealed < policy.spacing:
            return ""
        if policy.every_files and self._files >= policy.every_files:
            return "by number"
        burst = max(self._files, 1) >= policy.burst
        if policy.settle and burst and moment - self._last >= policy.settle:
            return "after a burst"
        if policy.interval and moment - self._first >= policy.interval:
            return "after a while"
        return ""

    def nothing(self) -> None:
        """What was seen has left nothing to keep."""
        self._first = None

    def failed(self, moment: float) -> None:
        """It could not be made."""
        self._retry = moment + RETRY_SECONDS
