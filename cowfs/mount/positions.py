"""Positions in the listing of a directory: where a reader goes on (`d_off` of readdir(3)).

The kernel keeps a listing together with its positions, and gives it to all handles. What it kept
may be gone when one of them is halfway, because names were changed or memory was short; then the
daemon is asked to go on at a position that another handle was given, maybe of a listing with other
names. So a position belongs to a name: it is made of the inode number and some bits of the name,
and a listing is in their order. What stays in the directory has the same place in each listing.

Threading: none; pure functions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from zlib import crc32

_NAME_BITS = 15
"""Inode numbers have 48 bits (mount/nodes.py), and positions are signed. The bits of the name tell
hard links apart."""
_NAME_MASK = (1 << _NAME_BITS) - 1
DOT, DOTS = 1, 2
"""After `.` and `..`, which come first; 0 is the beginning."""

Listing = list[tuple[int, bytes, int]]
"""(position after it, name, ino << 4 | kind), in order."""


def in_order(entries: list[tuple[bytes, int]]) -> Listing:
    """The listing of (name, ino << 4 | kind)."""
    found = sorted(
        [
            (packed >> 4 << _NAME_BITS | crc32(name) & _NAME_MASK, name, packed)
            for name, packed in entries
        ]
    )
    last = DOTS
    for at, (position, name, packed) in enumerate(found):
        if position <= last:  # links of one inode whose names have the same bits
            position = last + 1
            found[at] = position, name, packed
        last = position
    return found


def after(listing: Listing, position: int) -> Iterator[tuple[int, bytes, int]]:
    """What comes after a position."""
    return islice(listing, bisect_left(listing, (position + 1,)), None)
