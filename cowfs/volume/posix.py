"""The error that a system call returns, and the clock of file times.

Threading: stateless.
"""

from __future__ import annotations

import os
import time

_COARSE = 5  # CLOCK_REALTIME_COARSE of clock_gettime(2), which the time module does not name
_TICK_NS = 10_000_000
"""The longest tick of the coarse clock (CONFIG_HZ=100), ns."""
_NAP_NS = 1_000_000
_gettime = time.clock_gettime_ns


class PosixError(Exception):
    """An operation fails with this errno (errno(3)); nothing was changed."""

    def __init__(self, errno: int) -> None:
        super().__init__(errno)
        self.errno = errno

    def __str__(self) -> str:
        return os.strerror(self.errno)


def storable(time_ns: int) -> int:
    """The nearest time that a record holds (1677 to 2262), as other file systems do at theirs."""
    return min(max(time_ns, -(1 << 63)), (1 << 63) - 1)


def now() -> int:
    """Time for mtime and ctime, ns. The kernel stamps cached writes with its coarse clock; a
    finer one here would make files written later look older than files created before."""
    return _gettime(_COARSE)


def now_after(previous: int) -> int:
    """The time for a stamp that was `previous`. The kernel's own stamps can be ahead of the coarse
    clock by a part of its tick (since Linux 6.13 they are never before one that any file system
    handed out): within a tick the clock does not take a stamp back."""
    moment = _gettime(_COARSE)
    return previous if 0 < previous - moment < _TICK_NS else moment


def outlive(stamp: int) -> bool:
    """Sleep until `now` is later than a stamp of the last tick; whether that was needed. A stamp
    of the future is of another clock, and not waited for."""
    fresh = False
    for _ in range(_TICK_NS // _NAP_NS + 1):
        if not 0 <= stamp - _gettime(_COARSE) < _TICK_NS:
            break
        fresh = True
        time.sleep(_NAP_NS / 1e9)
    return fresh
