"""Repairing a store: what exists elsewhere is restored, what follows from other records is rebuilt,
and what is lost is marked, so that `verify` tells of it once (docs/design/repair.md).

A store whose pages are sound is repaired in one write transaction (rounds.py). Of one in which
pages are damaged another file is made first (rebuild.py), which takes its place if it is good.

Threading: everything runs in the calling thread, which is the only one of its process that writes.
"""

from __future__ import annotations

from pathlib import Path

from cowfs.service.repair.bench import Action
from cowfs.service.repair.rebuild import needs_rebuild, rebuild
from cowfs.service.repair.rounds import Repaired, repair_records
from cowfs.service.verify import Progress
from cowfs.volume.base import Base

__all__ = ["Action", "Repaired", "repair"]


def repair(store: Path, base_fd: int | None, *, dry_run: bool, progress: Progress) -> Repaired:
    """Repair a store that no process has open for writing.

    base_fd: the base directory, None when it is not there. dry_run: leave the store as it is.
    Raises RepairRefusedError when the store would not get better or nothing can be known of it,
    RepairNoRoomError, StoreLockedError, StoreFormatError and the other errors of opening a store.
    """
    base = Base(base_fd) if base_fd is not None else None
    mend = rebuild if needs_rebuild(store) else repair_records
    try:
        return mend(store, base, dry_run=dry_run, progress=progress)
    finally:
        if base is not None:
            base.forget()
