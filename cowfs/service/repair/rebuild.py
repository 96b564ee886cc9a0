"""Another data file of what is sound in a damaged one (docs/design/repair.md, "Damaged pages").

The new file is made in the directory `data.mdb.salvage` of the store, a store of its own: filled
with what store/salvage.py finds, completed by what other records tell (losses.py), repaired as any
store is (rounds.py), verified. Only then it takes the place of the damaged file, which is kept.

Threading: everything runs in the calling thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from cowfs import __version__
from cowfs.errors import (
    CowfsError,
    DamagedRecordError,
    RepairNoRoomError,
    RepairRefusedError,
    StoreFormatError,
    StoreMissingError,
)
from cowfs.format.version import unreadable_reason
from cowfs.service.repair.bench import MARKED, RESTORED, Action, Bench
from cowfs.service.repair.history import mend_history
from cowfs.service.repair.losses import fill_gaps, tell_undone
from cowfs.service.repair.rounds import Repaired, repair_records
from cowfs.service.verify import Progress, Report, Scan, examine
from cowfs.store.env import (
    ADDED,
    TABLES,
    LmdbError,
    lock_owner,
    open_store,
    store_exists,
    sync_directory,
)
from cowfs.store.files import lock_directory
from cowfs.store.pages import DamagedFileError, PageCheck
from cowfs.store.room import SLACK_BYTES, is_full
from cowfs.store.salvage import Harvest, best_harvest
from cowfs.store.snapshot import Reader, Snapshot
from cowfs.store.steps import reached
from cowfs.types import ROOT_INO
from cowfs.volume.base import Base
from cowfs.volume.volume import MAIN

_DATA = "data.mdb"
_DIRECTORY = "data.mdb.salvage"
_KEPT = "data.mdb.damaged"
_ROUNDS = 8


def needs_rebuild(store: Path) -> bool:
    """Whether pages of a store's file are damaged, or tables of it are missing."""
    check = PageCheck(store / _DATA)
    try:
        return any(True for _ in check.run()) or not check.tables >= set(TABLES) - ADDED
    except DamagedFileError:
        return True
    except OSError:
        return False  # opening it tells


def rebuild(store: Path, base: Base | None, *, dry_run: bool, progress: Progress) -> Repaired:
    """Make a store with damaged pages whole again, as far as it goes.

    dry_run: leave the store as it is; the new file is made all the same, and removed again. Raises
    RepairRefusedError when nothing can be read or what comes out is no store, RepairNoRoomError,
    StoreLockedError.
    """
    if not store_exists(store):
        raise StoreMissingError(path=str(store))
    owner, directory = lock_owner(store), store / _DIRECTORY
    place = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock_directory(store, place)
        reached("salvage.begin")
        shutil.rmtree(directory, ignore_errors=True)  # of a repair that was interrupted
        with _harvested(store, progress) as harvest:
            _see_that_it_is_known(store, harvest)
            before, actions = _damage(harvest), _told(harvest)
            _require_room(store, harvest)
            directory.mkdir(mode=0o700)
            with _full_is_an_error(store, harvest):
                harvest.write(directory, progress)
                reached("salvage.written")
                done = _complete(directory, base, harvest, progress)
        _see_that_it_works(store, directory)
        reached("salvage.repaired")
        kept = "" if dry_run else _put_in_place(store, directory)
        return Repaired([*actions, *done.actions], before, done.after, kept)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(place)
        os.close(owner)


@contextlib.contextmanager
def _harvested(store: Path, progress: Progress) -> Iterator[Harvest]:
    try:
        harvest = best_harvest(store / _DATA, progress)
    except DamagedFileError as error:
        raise RepairRefusedError(path=str(store), detail=str(error)) from None
    try:
        yield harvest
    finally:
        harvest.close()


def _see_that_it_is_known(store: Path, harvest: Harvest) -> None:
    """Raises StoreFormatError for a store of a newer version."""
    record = harvest.format
    if record is not None and (reason := unreadable_reason(record)):
        raise StoreFormatError(path=str(store), detail=reason, version=__version__)


def _damage(harvest: Harvest) -> Report:
    """What is wrong with the pages, as `verify` says it."""
    report = Report()
    for damage in harvest.damage:
        thing = f"page {damage.page}" if damage.page else "table"
        report.add("structure", damage.table, thing, damage.detail)
    return report


def _told(harvest: Harvest) -> list[Action]:
    """What is left of each table, for people."""
    actions = []
    if harvest.behind and not harvest.lost_with_commit:
        detail = "one of its two meta pages cannot be read: the last commit may be lost"
        actions.append(Action(MARKED, "", "the file", detail))
    for table in dict.fromkeys(gap.table for gap in harvest.gaps):
        count = harvest.count(table)
        missing = f"{count.lost}" if count.lost is not None else "an unknown number of"
        detail = f"{missing} records are lost, {count.found} are there"
        actions.append(Action(MARKED, table, "table", detail))
    if not actions and not harvest.behind:
        actions.append(Action(RESTORED, "", "the file", "all records can be reached again"))
    return actions


def _require_room(store: Path, harvest: Harvest) -> None:
    needed = harvest.bytes_needed() * 9 // 8 + SLACK_BYTES
    stats = os.statvfs(store)
    free = stats.f_bavail * stats.f_frsize
    if free < needed:
        raise RepairNoRoomError(path=str(store), needed=needed, free=free)


@contextlib.contextmanager
def _full_is_an_error(store: Path, harvest: Harvest) -> Iterator[None]:
    try:
        yield
    except (LmdbError, OSError) as error:
        if not is_full(error):
            raise
        stats = os.statvfs(store)
        free = stats.f_bavail * stats.f_frsize
        raise RepairNoRoomError(path=str(store), needed=harvest.bytes_needed(), free=free) from None


# -- records ----------------------------------------------------------------------------------


def _complete(directory: Path, base: Base | None, harvest: Harvest, progress: Progress) -> Repaired:
    """Fill the gaps, then repair as usual; what that cannot better stays as it is."""
    actions: list[Action] = []
    if harvest.gaps or harvest.lost_with_commit:
        store = open_store(directory, writable=True, damaged=True)
        try:
            with store.begin(write=True) as txn, Reader(store, txn) as reader:
                for _ in range(_ROUNDS):
                    scan = Scan(reader, base, Report(), progress)
                    if _fill(Bench(scan, txn, actions), harvest):
                        break
        finally:
            store.close()
    try:
        done = repair_records(directory, base, dry_run=False, progress=progress)
    except RepairRefusedError:
        done = repair_records(directory, base, dry_run=True, progress=progress)
        return Repaired(actions, done.before, done.before)
    return Repaired([*actions, *done.actions], done.before, done.after)


def _fill(bench: Bench, harvest: Harvest) -> bool:
    """Fill the gaps if the history is in order; if not, mend that, to look at all anew."""
    try:
        examine(bench.scan)
        bench.checks.update(problem.check for problem in bench.scan.report.problems)
        if mend_history(bench):
            return False
        fill_gaps(bench, harvest.gaps)
        if harvest.lost_with_commit:
            tell_undone(bench, harvest.lost_with_commit)
        return True
    finally:
        bench.scan.close()


def _see_that_it_works(store: Path, directory: Path) -> None:
    """A store that can be opened and has a present state. Raises RepairRefusedError."""
    if needs_rebuild(directory):
        raise RepairRefusedError(path=str(store), detail="the new file is not sound")
    try:
        opened = open_store(directory, writable=False)
        try:
            with Reader(opened) as reader:
                lineage = reader.lineage(reader.branch(MAIN).head)
                Snapshot(reader, lineage).inode(ROOT_INO)
                list(Snapshot(reader, lineage).entries(ROOT_INO, lambda name, detail: None))
        finally:
            opened.close()
    except (DamagedRecordError, CowfsError) as error:
        detail = f"what is left of it is no store: {error}"
        raise RepairRefusedError(path=str(store), detail=detail) from None


# -- files ------------------------------------------------------------------------------------


def _put_in_place(store: Path, directory: Path) -> str:
    """Keep the damaged file under another name and give its name to the new one; returns where it
    is kept. At every moment there is one of the two under the name."""
    new = directory / _DATA
    for path in (new, directory):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    kept = _keep(store)
    sync_directory(store)
    reached("salvage.kept")
    os.replace(new, store / _DATA)
    reached("salvage.placed")
    sync_directory(store)
    # Its numbers belong to the other file. Nobody can open this one for writing before we end.
    (store / "lock.mdb").unlink(missing_ok=True)
    reached("salvage.done")
    return str(kept)


def _keep(store: Path) -> Path:
    """A second name for the damaged file, one that is free or that it has already."""
    number = 0
    while True:
        kept = store / (_KEPT + (f".{number}" if number else ""))
        try:
            os.link(store / _DATA, kept)
            return kept
        except FileExistsError:
            if os.path.samefile(kept, store / _DATA):
                return kept
            number += 1
