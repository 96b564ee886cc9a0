"""Checks of extents that were given up: only checkpoints that say so show them, and only in
volatile paths; and those that say so show some.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

import os

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records, version
from cowfs.service.verify.history import State
from cowfs.service.verify.report import HEAD
from cowfs.service.verify.scan import Scan
from cowfs.service.volatile import Places
from cowfs.tree.keeping import Kept

_CHECK = "extent-thinned"
_TELLING = frozenset({"epoch", "inode", "dirent", "extent"})
"""Tables that tell which states show an extent."""


class Thinned:
    """Looks at each such extent; those of one content come one after the other."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._kept: Kept | None = None
        self._marked: dict[tuple[str, ...], tuple[int, Places]] = {}
        self._content = -1
        self._having = self._wrong = self._shown = 0
        self._any = False

    def look(self, content: int, number: int, epoch: int, owner: int) -> None:
        """A version of a block of the content of an inode."""
        self._any = True
        unsaid, wrong = self.judged(content, number, epoch, owner)
        thing = f"content {content} block {number}"
        if unsaid:
            self._report(thing, "it was given up, and what shows it does not say so", unsaid, owner)
        elif wrong:
            self._report(thing, "it was given up, and is in no volatile path", wrong, owner)

    def judged(
        self, content: int, number: int, epoch: int, owner: int
    ) -> tuple[set[int], set[int]]:
        """The epochs of the states that show an extent and do not say that they are thinned, and of
        those that say it, but not of that path. What the base had is never given up."""
        if not owner:
            return set(), set()
        kept = self._states()
        if content != self._content:
            self._content = content
            self._enter(kept, content, owner)
        versions = self._scan.versions("extent", keys.extent_prefix(content, number))
        epochs = [e for e, _ in versions]
        showing = kept.seen(epochs)[epochs.index(epoch)] & self._having
        self._shown |= showing
        told = 0
        for states, _ in self._marked.values():
            told |= states
        wrong = showing & (self._wrong if epoch else told)
        return set(kept.members(showing & ~told)), set(kept.members(wrong))

    def finish(self) -> None:
        """Who does not know such extents must keep away from the store."""
        scan = self._scan
        value = scan.reader.get("meta", b"format") if scan.readable("meta") else None
        try:
            record = version.decode_format(value) if value is not None else None
        except DamagedRecordError:
            return
        if self._any and record is not None and not record.incompatible & version.THINNED:
            detail = "it does not say that there are thinned extents"
            scan.problem("format", "meta", "format", detail)

    def unfounded(self) -> list[records.CheckpointRecord]:
        """The checkpoints that say that they are thinned and are not: they show no such extent. To
        be asked when all were judged."""
        saying = [record for record in self._scan.history.checkpoints if record.thinned]
        if not saying:
            return []
        kept = self._states()
        states = [(record, kept.state(record.epoch)) for record in saying]
        return [record for record, state in states if state and not state & self._shown]

    def report_unfounded(self) -> None:
        """Report them, where nothing else is wrong that would hide such an extent. The last of the
        checks: now that is known."""
        scan = self._scan
        hurt = {problem.table for problem in scan.report.problems} | {t for t, _ in scan.falsified}
        if hurt & _TELLING:
            return
        for record in self.unfounded():
            detail = "it says that it is thinned, and shows nothing that was given up"
            scan.problem(
                "checkpoint-thinned", "checkpoint", record.id, detail, checkpoints=[record.id]
            )

    def _states(self) -> Kept:
        if self._kept is not None:
            return self._kept
        history = self._scan.history
        parents = {
            number: record.parent
            for number, record in history.epochs.items()
            if number and history.lineage(number) is not None
        }
        present = {0, *history.heads, *history.applied}
        states = {*present, *(record.epoch for record in history.checkpoints)}
        kept = self._kept = Kept(parents, states & {0, *parents})
        marked: dict[tuple[str, ...], int] = {}
        for record in history.checkpoints:
            if record.thinned and record.epoch not in present:
                known = marked.get(record.thinned, 0)
                marked[record.thinned] = known | kept.state(record.epoch)
        self._marked = {
            patterns: (states, Places(kept, [os.fsencode(text) for text in patterns]))
            for patterns, states in marked.items()
        }
        return kept

    def _enter(self, kept: Kept, content: int, owner: int) -> None:
        """Who shows the content, and which of them say that it is volatile though it is not."""
        scan = self._scan
        versions = scan.versions("inode", keys.pack_id(owner))
        self._having = self._wrong = 0
        try:
            seen = kept.seen(epoch for epoch, _ in versions)
            for (_, value), by in zip(versions, seen, strict=True):
                if value and records.unpack_inode(value).content == content:
                    self._having |= by
            for states, places in self._marked.values():
                among = states & self._having
                self._wrong |= places.elsewhere(scan.reader, owner, among) if among else 0
        except DamagedRecordError:
            return  # which is reported where it is

    def _report(self, thing: str, detail: str, states: set[int], owner: int) -> None:
        history = self._scan.history
        names = {record.epoch: record.id for record in history.checkpoints}
        shown: list[State] = []
        for epoch in sorted(states):
            if (lineage := history.lineage(epoch)) is not None:
                shown.append((names.get(epoch, HEAD), lineage))
        self._scan.problem(_CHECK, "extent", thing, detail, states=shown, inode=owner)
