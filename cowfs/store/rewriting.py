"""Making the file of a store anew: what an upgrade and a compaction share.

The new file is made beside the old one as `NEW`, and gets its name when it is whole and on stable
storage: a crash at any moment leaves the one or the other.

Threading: stateless functions, for a process that holds the store's lock and has no environment of
it open but those that it passes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import lmdb

from cowfs.errors import StoreDamagedError
from cowfs.store.files import DATA, NEW
from cowfs.store.pages import DamagedFileError, PageCheck

Progress = Callable[[str, int, int], None]
"""Called with a phase's name, how many of its things are done, and how many there are."""


Row = tuple[bytes, bytes]
T = TypeVar("T")
_BATCH_BYTES = 8 << 20
_EVERY = 1024


def silent(phase: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


class LacksRoomError(Exception):
    """There is no room for another file beside the store's; says how much is missing."""


class DifferentError(Exception):
    """The new file does not say what the old one says."""


FAILURES = (OSError, lmdb.Error, LacksRoomError, DifferentError)
"""What may stop the making of a file."""


def reason(error: BaseException) -> str:
    """What a failure says, for people."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class Meter:
    """Tells `progress` how many of `total` records a phase has done."""

    def __init__(self, progress: Progress, phase: str, total: int) -> None:
        self._progress, self._phase, self._total = progress, phase, total
        self._done = 0

    def count(self, rows: Iterable[T]) -> Iterator[T]:
        """The same rows, counted."""
        for row in rows:
            if not self._done % _EVERY:
                self._progress(self._phase, self._done, self._total)
            self._done += 1
            yield row


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows by some MiB, as much as one transaction shall write."""
    batch: list[Row] = []
    size = 0
    for key, value in rows:
        batch.append((key, value))
        size += len(key) + len(value)
        if size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def refuse_damaged_pages(path: Path, progress: Progress) -> None:
    """LMDB trusts its pages: what it reads from a damaged one would be copied as if it were right.

    Raises StoreDamagedError.
    """
    try:
        damage = next(PageCheck(path / DATA, progress).run(), None)
    except DamagedFileError as error:
        raise StoreDamagedError(path=str(path), detail=str(error)) from None
    if damage is not None:
        detail = f"page {damage.page} of table {damage.table}: {damage.detail}"
        raise StoreDamagedError(path=str(path), detail=detail)


def see_that_there_is_room(path: Path, needed: int) -> None:
    """Raises LacksRoomError unless `needed` bytes are free beside the store's file."""
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    if free < needed:
        detail = f"it needs {needed >> 20:,} MiB of room beside it, {free >> 20:,} MiB are free"
        raise LacksRoomError(detail)


def sync_new(path: Path) -> None:
    """Bring the new file to stable storage."""
    with open(path / NEW, "rb") as file:
        os.fsync(file.fileno())


def name_locks(path: Path) -> None:
    """Give the new file of LMDB's locks its name. It says which transaction was the last one, so it
    goes with the data, and first: who opens the new locks with the old data sees a whole state of
    the old store, and no process ever writes that any more."""
    os.replace(path / (NEW + "-lock"), path / "lock.mdb")


def name_data(path: Path) -> None:
    """Give the new file its name. Who reads the old store keeps both old files."""
    os.replace(path / NEW, path / DATA)


def take_back(path: Path) -> None:
    """Remove what was made in vain."""
    with contextlib.suppress(OSError):
        os.unlink(path / NEW)
        os.unlink(path / (NEW + "-lock"))
