"""Volatile paths: what can be made again (build results, installed packages).

They are recorded like everything else. A restore leaves them as they are, unless it is told
otherwise or names them; the contents that only old checkpoints have of them go first.

Threading: stateless functions; a `Places` belongs to the thread of its reader.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from cowfs.format import keys
from cowfs.service import config
from cowfs.store.snapshot import Reader
from cowfs.tree.keeping import Kept
from cowfs.types import ROOT_INO

_REMEMBERED = 1 << 16


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


class Places:
    """In which of many states an inode has a name outside of volatile paths: all of them at once,
    as bits (tree/keeping.py), since directories are seldom renamed."""

    def __init__(self, kept: Kept, patterns: Sequence[bytes]) -> None:
        """patterns: as of `matches`."""
        self._kept = kept
        self._patterns = patterns
        self._links: dict[int, list[tuple[int, bytes, int]]] = {}
        self._volatile: dict[bytes, bool] = {}

    def elsewhere(self, reader: Reader, ino: int, states: int) -> int:
        """Those of the states in which it has such a name. What cannot be reached from the top of a
        state has no name there. reader: of the same history, or a newer one. Raises
        DamagedRecordError."""
        found = 0
        stack = [(ino, b"", states)]
        while stack:
            at, below, among = stack.pop()
            if at == ROOT_INO:
                if not self._is_volatile(below):
                    found |= among
                continue
            for parent, name, seen in self._links_of(reader, at):
                if both := seen & among & ~found:
                    stack.append((parent, name + b"/" + below if below else name, both))
        return found

    def _links_of(self, reader: Reader, ino: int) -> list[tuple[int, bytes, int]]:
        """(parent, name, states in which it is there) of all names that an inode ever had."""
        known = self._links.get(ino)
        if known is None:
            versions: dict[tuple[int, bytes], list[tuple[int, bool]]] = {}
            for key, value in reader.scan("link", keys.pack_id(ino)):
                place = keys.link_parts(key)
                versions.setdefault(place, []).append((keys.epoch_of(key), bool(value)))
            known = [(*place, self._seen(of)) for place, of in versions.items()]
            if len(self._links) >= _REMEMBERED:
                self._links.clear()
            self._links[ino] = known
        return known

    def _seen(self, versions: list[tuple[int, bool]]) -> int:
        seen = self._kept.seen(epoch for epoch, _ in versions)
        states = 0
        for (_, there), by in zip(versions, seen, strict=True):
            if there:
                states |= by
        return states

    def _is_volatile(self, path: bytes) -> bool:
        directory = path.rpartition(b"/")[0]
        if not directory:
            return matches(path, self._patterns)
        known = self._volatile.get(directory)
        if known is None:
            if len(self._volatile) >= _REMEMBERED:
                self._volatile.clear()
            known = self._volatile[directory] = matches(directory, self._patterns)
        return known or matches(path, self._patterns)
