"""Memory that was freed: glibc keeps it while there is work, and gives it back when there is none.

Blocks of files come and go by the megabyte. By default glibc (mallopt(3)) gives memory at the end
of its heap back as soon as it is 128 KiB, so that every group of blocks would be written to pages
that the kernel has to find and clear first.

Threading: `keep_freed` before other threads are started; `give_back` in any thread.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h."""
_KEPT = 32 << 20
_MAPPED = 4 << 20
"""Larger pieces are given back one by one."""

_libc = ctypes.CDLL(None)


def keep_freed() -> None:
    """Keep up to 32 MiB of each thread. Without effect where the C library is another one."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_TRIM_THRESHOLD, _KEPT)
        _libc.mallopt(_MMAP_THRESHOLD, _MAPPED)


def give_back() -> None:
    """Nothing happens for a while: give back what is free."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
