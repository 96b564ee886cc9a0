"""Making the file of a store anew: what an upgrade and a compaction share.

The new file is made beside the old one as `NEW`, and gets its name when it is whole and on stable
storage: a crash at any moment leaves the one or the other.

Threading: stateless functions, for a process that holds the store's lock and has no environment of
it open but those that it passes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from cowfs.errors import StoreDamagedError
from cowfs.store.files import DATA, NEW
from cowfs.store.pages import DamagedFileError, PageCheck

Progress = Callable[[str, int, int], None]
"""Called with a phase's name, how many of its things are done, and how many there are."""


def silent(phase: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


class LacksRoomError(Exception):
    """There is no room for another file beside the store's; says how much is missing."""


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
