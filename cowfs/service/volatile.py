"""Volatile paths: what can be made again (build results, installed packages).

They are recorded like everything else. A restore leaves them as they are, unless it is told
otherwise or names them.

Threading: stateless functions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from cowfs.service import config


def left_alone(store: Path, paths: Sequence[bytes]) -> list[bytes]:
    """The patterns that a restore of `paths` (none: of everything) leaves alone, as the store's
    configuration has them: but for those that match a path that is named, or one above it."""
    patterns = [os.fsencode(path) for path in config.read(store).volatile.paths]
    return [p for p in patterns if not any(matches(path, [p]) for path in paths)]


def matches(path: bytes, patterns: Sequence[bytes]) -> bool:
    """Whether a path lies at or below something that a pattern (fnmatch) matches: as a whole path,
    or as a single name in it."""
    above = b""
    for name in path.split(b"/"):
        above = above + b"/" + name if above else name
        for pattern in patterns:
            wanted = pattern.decode("latin-1")
            if any(fnmatchcase(text.decode("latin-1"), wanted) for text in (above, name)):
                return True
    return False
