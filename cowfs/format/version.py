"""Version and feature flags of the store (docs/format.md, "Versions").

A store is refused when its version is newer than `VERSION` or when it has an *incompatible* flag
that this code does not know. Unknown *compatible* flags are kept and ignored.

Threading: constants and pure functions.
"""

from __future__ import annotations

from cowfs.format.records import FormatRecord
from cowfs.types import BLOCK_SIZE

VERSION = 1
KNOWN_INCOMPATIBLE = 0


def unreadable_reason(record: FormatRecord) -> str | None:
    """Why this code cannot read the store, None when it can."""
    if record.version > VERSION:
        return f"format version {record.version}"
    if unknown := record.incompatible & ~KNOWN_INCOMPATIBLE:
        return f"unknown incompatible features {unknown:#x}"
    if record.block_size != BLOCK_SIZE:
        return f"blocks of {record.block_size} bytes"
    return None
