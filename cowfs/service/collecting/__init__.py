"""Collecting garbage: what no kept state needs any more (docs/design/garbage-collection.md), and
what only old ones have of volatile paths.

In steps. A step finds, in the calling thread, a few hundred records that can go; the writer thread
takes them out, between two commits. It can end at any moment: the next run goes on with what the
list of garbage in `meta` names.

Threading: one run at a time, in a thread that may wait for the owner of the volume and the writer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from cowfs.errors import DamagedRecordError, StoreFullError
from cowfs.format import keys
from cowfs.service.collecting.blocks import Sweep
from cowfs.service.collecting.planning import Plan, make_plan, waiting
from cowfs.service.collecting.repacking import Remains, remains
from cowfs.service.collecting.thinning import Row as Extent
from cowfs.service.collecting.thinning import Thinner, Thinning, thin
from cowfs.service.collecting.versions import Finder, Row
from cowfs.service.engine import Engine, commit
from cowfs.store.env import Transaction
from cowfs.store.headers import Header
from cowfs.store.snapshot import Reader
from cowfs.store.steps import reached
from cowfs.store.writer import Writer
from cowfs.volume.removing import GARBAGE

__all__ = ["UNSWEPT", "Collected", "Pace", "Thinning", "collect", "is_due", "preview"]

UNSWEPT = b"unswept"
"""Key in `meta`: extents were taken out since the blocks were last swept."""
_ROWS = 400
"""Records that one transaction takes out."""

Progress = Callable[..., None]


class Pace:
    """How a run goes on. busy: set while others use the mount; nothing is done then. stop: ends the
    run. rest: how many times as long as a step took it pauses after it, so that others come first:
    a step keeps the interpreter."""

    def __init__(
        self,
        busy: threading.Event | None = None,
        stop: threading.Event | None = None,
        rest: float = 0.0,
    ) -> None:
        self._busy = busy
        self._stop = stop or threading.Event()
        self._rest = rest
        self._since = time.monotonic()

    def go_on(self) -> bool:
        """Wait as long as it must; False when the run shall end."""
        if self._rest:
            took = time.monotonic() - self._since
            self._stop.wait(min(took * self._rest, _LONGEST_REST))
        while self._busy is not None and self._busy.is_set() and not self._stop.is_set():
            self._stop.wait(_BUSY_SECONDS)
        self._since = time.monotonic()
        return not self._stop.is_set()


_BUSY_SECONDS = 0.25
_LONGEST_REST = 0.25


@dataclass(slots=True)
class Collected:
    """What a run did, or would do. versions: records of the history that went. blocks, bytes: of
    file data. complete: all was looked at. left: something open, or damaged, keeps garbage.
    thinned: epochs of the checkpoints that lost contents of volatile paths; extents: of these."""

    versions: int = 0
    blocks: int = 0
    bytes: int = 0
    complete: bool = False
    left: bool = False
    extents: int = 0
    thinned: set[int] = field(default_factory=set)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__ if name != "thinned"}

    def add(self, other: Collected) -> None:
        """What another run did after this one."""
        self.versions += other.versions
        self.blocks += other.blocks
        self.bytes += other.bytes
        self.extents += other.extents
        self.thinned |= other.thinned
        self.complete, self.left = other.complete, other.left


def is_due(reader: Reader) -> bool:
    """Whether a run would have anything to do."""
    return bool(waiting(reader)) or reader.get("meta", UNSWEPT) is not None


def collect(
    engine: Engine,
    operation: AbstractContextManager[Any],
    pace: Pace,
    progress: Progress,
    *,
    thorough: bool = False,
    thinning: Thinning | None = None,
) -> Collected:
    """Take out what no kept state needs, and of volatile paths what `thinning` allows.

    thorough: look for unused blocks whether any are known of or not; a crash may leave some.
    operation: held for each step; with it nobody restores or removes anything. progress: called
    with phase, done, total. Raises DamagedRecordError (the history cannot be read: nothing is
    taken out), StoreFullError, StoreUnwritableError, WriterEndedError.
    """
    run = _Run(engine, operation, pace, progress)
    run.all(thorough=thorough, thinning=thinning)
    return run.collected


class _Run:
    def __init__(
        self,
        engine: Engine,
        operation: AbstractContextManager[Any],
        pace: Pace,
        progress: Progress,
    ) -> None:
        self._engine = engine
        self._store = engine.volume.store
        self._writer: Writer = engine.volume.writer
        self._operation = operation
        self._pace = pace
        self._progress = progress
        self.collected = Collected()

    def all(self, *, thorough: bool, thinning: Thinning | None) -> None:
        reached("collect.begin")
        with self._operation:
            commit(self._engine)
        while (plan := self._plan()) is not None:
            left = self.collected.left
            if not self._versions(plan):
                return
            if self.collected.left and not left:
                break  # what is left is found by the next run
        if thinning is not None and not self._thin(thinning):
            return
        if (thorough or self._is_unswept()) and not self._sweep():
            return
        self.collected.complete = True
        self._refresh()
        reached("collect.done")

    def _plan(self) -> Plan | None:
        """None when there is nothing to look at."""
        with self._operation, Reader(self._store) as reader:
            plan = make_plan(reader) if waiting(reader) else None
        return plan if plan is not None and plan.done else None

    def _refresh(self) -> None:
        """What readers see keeps pages from being used again."""
        self._engine.call(self._engine.volume.look_again)

    # -- versions -------------------------------------------------------------------------------

    def _versions(self, plan: Plan) -> bool:
        """Take out what one plan allows; False when the run shall end."""
        finder = Finder(plan)
        while not finder.finished:
            if not self._pace.go_on():
                return False
            with self._operation:
                self._step(finder)
            self._progress(phase="versions", done=finder.done, total=finder.total)
        self.collected.left |= finder.left
        if not finder.left:
            settled = [("meta", GARBAGE + keys.pack_id(epoch)) for epoch in plan.done]
            self._take(settled)
        return True

    def _step(self, finder: Finder) -> None:
        with Reader(self._store) as reader:
            rows = finder.step(reader, self._held(reader), self._newer(reader, finder.plan))
        reached("collect.found")
        self._take(rows)
        self.collected.versions += sum(table != "change" for table, _ in rows)

    def _held(self, reader: Reader) -> set[int]:
        """Contents of what is open without a name."""
        held = self._engine.call(self._engine.volume.held_contents)
        return held | {keys.unpack_id(value) for _, value in reader.scan("orphan")}

    def _newer(self, reader: Reader, plan: Plan) -> Plan | None:
        """Another plan if there are newer states, which are kept as well; what was kept when the
        run began stays so."""
        if reader.branch(self._engine.volume.branch.name).head == plan.head:
            return None
        return make_plan(reader, also=plan.kept.epochs)

    def _take(self, rows: list[Row]) -> None:
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            self._writer.run(lambda txn: self._delete(txn, part))  # noqa: B023
            reached("collect.taken")
        self._refresh()

    def _delete(self, txn: Transaction, rows: list[Row]) -> None:
        tables = self._store.tables
        for table, key in rows:
            txn.delete(key, db=tables[table])
        if any(table == "extent" for table, _ in rows):
            txn.put(UNSWEPT, b"", db=tables["meta"])
        reached("collect.before-commit")

    # -- volatile paths -------------------------------------------------------------------------

    def _thin(self, thinning: Thinning) -> bool:
        """Give up what only old states have of volatile paths; False when the run shall end."""
        with self._operation, Reader(self._store) as reader:
            thinner = Thinner(make_plan(reader), thinning)
        while not thinner.finished:
            if not self._pace.go_on():
                return False
            with self._operation:
                with Reader(self._store) as reader:
                    newer = self._newer(reader, thinner.plan)
                    rows = thinner.step(reader, self._held(reader), newer)
                reached("collect.thinnable")
                self._give_up(thinner, thinning, rows)
            self._progress(phase="volatile", done=thinner.done, total=thinner.total)
        self.collected.left |= thinner.left
        return True

    def _give_up(self, thinner: Thinner, thinning: Thinning, rows: list[Extent]) -> None:
        kept = thinner.plan.kept
        done: list[tuple[int, set[int]]] = []

        def write(txn: Transaction, part: list[Extent]) -> None:
            done.append(thin(txn, self._store, kept, part, thinning.patterns))
            if done[-1][0]:
                txn.put(UNSWEPT, b"", db=self._store.tables["meta"])
            reached("collect.before-thinning")

        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            self._writer.run(lambda txn: write(txn, part))  # noqa: B023
            reached("collect.thinned")
        for extents, states in done:
            self.collected.extents += extents
            self.collected.thinned |= states
        if rows:
            self._refresh()

    # -- blocks ---------------------------------------------------------------------------------

    def _is_unswept(self) -> bool:
        with Reader(self._store) as reader:
            return reader.get("meta", UNSWEPT) is not None

    def _sweep(self) -> bool:
        """Take out blocks that nothing refers to; False when the run shall end."""
        ledger = self._writer.ledger
        self._writer.run(lambda _: ledger.watch())
        try:
            for step in Sweep(self._store).steps():
                if not self._pace.go_on():
                    return False
                if step.gone:
                    self._writer.run(lambda txn: self._delete_blocks(txn, step.gone))  # noqa: B023
                    reached("collect.swept")
                    self._refresh()
                self._progress(phase=step.what, done=step.done, total=step.total)
            self._take([("meta", UNSWEPT)])
        except DamagedRecordError:
            self.collected.left = True
            return True
        finally:
            ledger.end_watch()
        return self._repack()

    def _repack(self) -> bool:
        """Make segments anew of which little is left; False when the run shall end. There must be
        room for the new one before the old one goes: without it, it stays."""
        try:
            for made in remains(self._store):
                if not self._pace.go_on():
                    return False
                self._writer.run(lambda txn: self._replace(txn, made))  # noqa: B023
                self._refresh()
        except StoreFullError:
            pass
        except DamagedRecordError:
            self.collected.left = True
        return True

    def _replace(self, txn: Transaction, made: Remains) -> None:
        if made.put(txn, self._store):
            self.collected.bytes += made.gained

    def _delete_blocks(self, txn: Transaction, headers: Collection[Header]) -> None:
        blocks, spares = self._store.tables["block"], self._writer.ledger.spares
        for header in headers:
            if not spares(header.digest) and txn.delete(header.digest, db=blocks):
                self.collected.blocks += 1
                self.collected.bytes += header.size
        reached("collect.before-sweep")


def preview(
    reader: Reader, removed: Collection[int], progress: Progress, thinning: Thinning | None = None
) -> Collected:
    """What a run would take out if the checkpoints of these epochs were removed."""
    finder = Finder(make_plan(reader, without=removed))
    held = {keys.unpack_id(value) for _, value in reader.scan("orphan")}
    would, extents = Collected(), set[bytes]()
    while not finder.finished:
        rows = finder.step(reader, held)
        would.versions += sum(table != "change" for table, _ in rows)
        extents.update(key for table, key in rows if table == "extent")
        progress(phase="versions", done=finder.done, total=finder.total)
    thinner = Thinner(finder.plan, thinning) if thinning is not None else None
    while thinner is not None and not thinner.finished:
        found = [row for row in thinner.step(reader, held) if row[0] not in extents]
        would.extents += len(found)
        for key, showing in found:
            extents.add(key)
            would.thinned.update(finder.plan.kept.members(showing))
        progress(phase="volatile", done=thinner.done, total=thinner.total)
    for step in Sweep(reader.store, extents).steps():
        would.blocks += len(step.gone)
        would.bytes += sum(header.size for header in step.gone)
        progress(phase=step.what, done=step.done, total=step.total)
    would.complete, would.left = True, finder.left
    return would
