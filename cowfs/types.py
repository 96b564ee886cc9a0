"""Identifiers shared by every layer, and the constants of the store's geometry.

Threading: immutable definitions only.
"""

from __future__ import annotations

from typing import NewType

Ino = NewType("Ino", int)
"""An inode number: unique for the life of a store, never reused; 1 is the root."""

ContentId = NewType("ContentId", int)
"""Names one sequence of blocks. Drawn from the same counter as inode numbers. A file that is
truncated to zero takes a new content id, so old blocks need not be erased."""

EpochId = NewType("EpochId", int)
"""Epochs come from one counter and only grow; 0 is the base directory as it was imported."""

ROOT_INO = Ino(1)
BASE_EPOCH = EpochId(0)
BLOCK_SIZE = 65536
"""Bytes in a full block (64 KiB). The last block of a file may be shorter."""

NAME_MAX = 255
"""Bytes in a name (POSIX NAME_MAX, as on ext4)."""

MAX_EPOCH = (1 << 64) - 1
