"""The history that a store tells: epochs, their lineages, and the states that can be restored.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from cowfs.format.records import CheckpointRecord, EpochRecord
from cowfs.service.verify.report import HEAD
from cowfs.store.lineage import Lineage

State = tuple[str, Lineage]
"""A checkpoint's id (or HEAD) and what it sees."""

_CACHED = 4096


class History:
    """Epochs by number, as far as their records are sound.

    The runs are worked out from the parents, so that a wrong `run_start` harms nothing here.
    faulty: those with a problem of their own; what only follows from it is not reported again.
    applied: those whose states the base shows, or is being made to show.
    """

    def __init__(self) -> None:
        self.epochs: dict[int, EpochRecord] = {}
        self.checkpoints: list[CheckpointRecord] = []
        self.heads: list[int] = []
        self.branches: set[str] = set()
        self.faulty: set[int] = set()
        self.applied: set[int] = set()
        self._runs: dict[int, int] = {}
        self._lineages: OrderedDict[int, Lineage | None] = OrderedDict()
        self._states: list[State] | None = None
        self._showing: dict[int, list[int]] | None = None

    def run_start(self, epoch: int) -> int | None:
        """The first epoch of the unbroken run that an epoch belongs to, from the parents alone."""
        return self._runs.get(epoch)

    def add(self, epoch: int, record: EpochRecord) -> None:
        """Enter an epoch; they come in ascending order."""
        self.epochs[epoch] = record
        if epoch == 0:
            self._runs[0] = 0
        elif record.parent < epoch and record.parent in self._runs:
            follows = record.parent == epoch - 1
            self._runs[epoch] = self._runs[record.parent] if follows else epoch

    def lineage(self, epoch: int) -> Lineage | None:
        """What an epoch sees; None when its ancestors are not all there."""
        if epoch in self._lineages:
            self._lineages.move_to_end(epoch)
            return self._lineages[epoch]
        lineage = self._lineages[epoch] = self._follow(epoch)
        if len(self._lineages) > _CACHED:
            self._lineages.popitem(last=False)
        return lineage

    def _follow(self, epoch: int) -> Lineage | None:
        ranges: list[tuple[int, int]] = []
        while (start := self._runs.get(epoch)) is not None:
            ranges.append((start, epoch))
            if start == 0:
                return Lineage(tuple(reversed(ranges)))
            epoch = self.epochs[start].parent
        return None

    def showing(self, epoch: int) -> list[tuple[int, Lineage]]:
        """The states that first show what an epoch wrote, and their lineages: the epoch itself, or
        if its checkpoint was removed, those that were made from it, perhaps none. Of other epochs
        only parts are left."""
        if self._showing is None:
            self._showing = self._find_showing()
        found = self._showing.get(epoch, ())
        return [(at, line) for at in found if (line := self.lineage(at)) is not None]

    def judged(self, epoch: int) -> Lineage | None:
        """By what to judge what an epoch wrote: its own lineage, or that of the first state that
        shows it; None when none does."""
        return next((lineage for _, lineage in self.showing(epoch)), None)

    def _find_showing(self) -> dict[int, list[int]]:
        kept = {0, *self.heads, *self.applied, *(record.epoch for record in self.checkpoints)}
        kept |= {n for n, record in self.epochs.items() if record.checkpoint or not record.sealed}
        found: dict[int, list[int]] = {epoch: [] for epoch in self.epochs}
        for epoch in sorted(self.epochs, reverse=True):
            if epoch in kept:
                found[epoch] = [epoch]
            parent = self.epochs[epoch].parent
            if epoch and parent < epoch and parent in found and parent not in kept:
                found[parent] += found[epoch]
        return found

    @property
    def states(self) -> list[State]:
        """All checkpoints, oldest first, then the present state of each branch."""
        if self._states is None:
            self._states = []
            for record in sorted(self.checkpoints, key=lambda r: (r.epoch, r.time)):
                if (lineage := self.lineage(record.epoch)) is not None:
                    self._states.append((record.id, lineage))
            for head in self.heads:
                if (lineage := self.lineage(head)) is not None:
                    self._states.append((HEAD, lineage))
        return self._states

    def seeing(self, epoch: int, touched: Iterable[int]) -> list[State]:
        """The states in which `epoch` is the newest of the epochs that `touched` a thing."""
        newer = [other for other in touched if other > epoch]
        return [
            (name, lineage)
            for name, lineage in self.states
            if lineage.visible(epoch) and not any(lineage.visible(other) for other in newer)
        ]
