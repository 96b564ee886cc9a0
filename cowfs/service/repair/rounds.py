"""The repair of records: verify and mend in turns, in one write transaction, which is committed
only if the store has fewer problems then (docs/design/repair.md).

Threading: everything runs in the calling thread, which is the only one of its process that writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cowfs.errors import RepairRefusedError
from cowfs.service.repair.audits import mend_audit
from cowfs.service.repair.bench import Action, Bench
from cowfs.service.repair.blocks import Unreadable
from cowfs.service.repair.checksums import mark_falsified, mend_bits, tell_of_missing
from cowfs.service.repair.directories import mark_absent, mend_directories
from cowfs.service.repair.history import mend_history
from cowfs.service.repair.names import mend_names
from cowfs.service.repair.sessions import mend_sessions
from cowfs.service.repair.strays import set_aside_strays
from cowfs.service.repair.things import mark_things, mend_things
from cowfs.service.repair.thinned import mend_thinned
from cowfs.service.verify import Bad, Progress, Report, Scan, examine
from cowfs.store.env import Store, Transaction, open_store
from cowfs.store.snapshot import Reader
from cowfs.volume.base import Base

_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair did, or would do. before, after: what `verify` says of the store then. kept:
    where the file is kept of which another one was made, "" when it was not."""

    actions: list[Action]
    before: Report
    after: Report
    kept: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data for the command's --json; beside it stands the report `after`."""
        return {
            "actions": [action.to_json() for action in self.actions],
            "problems_before": self.before.count,
            "problems_after": self.after.count,
            "kept": self.kept,
        }


class _UndoneError(Exception):
    """Ends the transaction without a commit."""


def repair_records(
    store: Path, base: Base | None, *, dry_run: bool, progress: Progress
) -> Repaired:
    """Repair the records of a store whose pages are sound.

    dry_run: commit nothing. Raises RepairRefusedError when the store would not get better, and the
    errors of opening a store.
    """
    opened = open_store(
        store, writable=True, damaged=True, upgrading=not dry_run, progress=progress
    )
    done: Repaired | None = None
    try:
        with opened.begin(write=True) as txn:
            done = _repair(opened, txn, base, progress)
            if dry_run or not done.actions:
                raise _UndoneError
    except _UndoneError:
        pass
    finally:
        opened.close()
    assert done is not None
    return done


def _repair(store: Store, txn: Transaction, base: Base | None, progress: Progress) -> Repaired:
    """Verify and repair in turns, until nothing is left that can be done."""
    actions: list[Action] = []
    reader = Reader(store, txn)
    try:
        before = _turn(reader, base, progress, None)
        report = before
        for _ in range(_ROUNDS):
            if not any(_badness(report)):
                break
            count = len(actions)
            _turn(reader, base, progress, (txn, actions))
            txn.recount(store.tables)
            report = _turn(reader, base, progress, None)
            if len(actions) == count:
                break
    finally:
        reader.close()
    if report.count > before.count:
        detail = f"{before.count} problems would become {report.count}"
        raise RepairRefusedError(path=str(store.path), detail=detail)
    if _badness(report) >= _badness(before):
        return Repaired([], before, before)  # all that was tried gained nothing
    return Repaired(actions, before, report)


def _badness(report: Report) -> tuple[int, int]:
    """How bad a store is: problems first, then what is known to be lost."""
    return report.count, sum(note.check == "block-lost" for note in report.notes)


def _turn(
    reader: Reader,
    base: Base | None,
    progress: Progress,
    hands: tuple[Transaction, list[Action]] | None,
) -> Report:
    """Verify; with `hands`, repair what was found."""
    scan = Scan(reader, base, Report(), progress)
    try:
        bad = examine(scan)
        if hands is not None:
            _mend(Bench(scan, *hands), bad)
    finally:
        scan.close()
    return scan.report


def _mend(bench: Bench, bad: dict[bytes, Bad]) -> None:
    """One round: what can be found or told anew; marks only when there is nothing of that left."""
    if mend_bits(bench) or mend_history(bench):
        return  # what else is wrong looks different now
    blocks = Unreadable(bench, bad)
    done = mend_things(bench)
    done |= mend_names(bench)
    done |= mend_thinned(bench)
    done |= mend_audit(bench)
    done |= mend_sessions(bench)
    done |= blocks.restore()
    if not done and not set_aside_strays(bench) and not mend_directories(bench):
        mark_absent(bench)
        mark_things(bench)
        mark_falsified(bench)
        blocks.mark()
        tell_of_missing(bench)
