"""The states that the history keeps: its checkpoints and the open head, as a tree.

A state is named by its epoch. Most epochs are states. An epoch whose checkpoint was removed is
none: what it wrote belongs to the states that were made from it. Epoch 0, the base directory as
it was at first, counts as one whether its checkpoint is there or not.

Threading: as the reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.store.lineage import Lineage, Range
from cowfs.store.snapshot import Reader, Snapshot


class States:
    """What is read of it is kept, so that each record is read once.

    damaged: told the ids of checkpoints that cannot be read, which are no states then. Without it
    they raise DamagedRecordError.
    """

    def __init__(
        self, reader: Reader, head: int, damaged: Callable[[str], None] | None = None
    ) -> None:
        self.reader = reader
        self.head = head
        self._damaged = damaged
        self._epochs: dict[int, records.EpochRecord] = {}
        self._checkpoints: dict[int, records.CheckpointRecord | None] = {}
        self._runs: dict[int, tuple[Range, ...]] = {0: ()}
        self._shown: dict[int, list[int]] | None = None
        # As many checkpoints as epochs beside the open one: none was removed.
        self._all_are_states = reader.count("checkpoint") + 1 == reader.count("epoch")

    def checkpoint(self, epoch: int) -> records.CheckpointRecord | None:
        """The checkpoint that sealed an epoch, None when it has none any more."""
        if epoch not in self._checkpoints:
            self._checkpoints[epoch] = self._read_checkpoint(self._epoch(epoch).checkpoint)
        return self._checkpoints[epoch]

    def newest_first(self) -> Iterator[records.CheckpointRecord]:
        """All checkpoints, by epoch, since a clock may have gone back."""
        for key, value in self.reader.backwards("epoch"):
            epoch = keys.unpack_id(key)
            self._epochs[epoch] = records.decode(value, records.EpochRecord)
            if epoch != self.head and (found := self.checkpoint(epoch)):
                yield found

    def all(self) -> Iterator[int]:
        """All states but epoch 0, newest first."""
        yield self.head
        for record in self.newest_first():
            if record.epoch:
                yield record.epoch

    def parent(self, epoch: int) -> int:
        """The state that a state was made from; that of epoch 0 is itself. Raises
        DamagedRecordError."""
        while epoch:
            parent = self._epoch(epoch).parent
            if parent >= epoch:
                raise DamagedRecordError(what=f"epoch {epoch}", detail="its parent is younger")
            epoch = parent
            if self.checkpoint(epoch):
                break
        return epoch

    def showing(self, epoch: int) -> list[int]:
        """The states that first show what an epoch wrote: itself if it is one."""
        if self._all_are_states:
            return [epoch]
        if self._shown is None:
            self._shown = self._find_shown()
        return self._shown.get(epoch, [])

    def lineage(self, epoch: int) -> Lineage:
        """The lineage of an epoch. Those of one run have most in common: it is found once."""
        start = self._epoch(epoch).run_start
        before = self._runs.get(start)
        if before is None:
            before = self.lineage_ranges(start)
        return Lineage((*before, (start, epoch)))

    def lineage_ranges(self, start: int) -> tuple[Range, ...]:
        """What the epochs of the run that begins at `start` see of other runs."""
        self._runs[start] = found = self.reader.lineage(start).ranges[:-1]
        return found

    def snapshot(self, epoch: int) -> Snapshot:
        """The tree of a state."""
        return Snapshot(self.reader, self.lineage(epoch))

    def written(self, epoch: int) -> list[int]:
        """The epochs whose changes a state shows and its parent does not, ascending."""
        parent = self.parent(epoch)
        if self._epoch(epoch).parent == parent:
            return [epoch]
        found: list[int] = []
        cursor = self.reader.cursor("epoch")
        for first, last in self.lineage(epoch).minus(self.lineage(parent)):
            more = cursor.set_range(keys.pack_id(first))
            while more and (at := keys.unpack_id(cursor.key())) <= last:
                found.append(at)
                more = cursor.next()
        return found

    def has_changes(self, epoch: int) -> bool:
        """Whether an epoch changed anything."""
        return next(self.reader.keys("change", keys.pack_id(epoch)), None) is not None

    def _epoch(self, epoch: int) -> records.EpochRecord:
        found = self._epochs.get(epoch)
        if found is None:
            found = self._epochs[epoch] = self.reader.epoch(epoch)
        return found

    def _read_checkpoint(self, name: str) -> records.CheckpointRecord | None:
        if not name:
            return None
        try:
            value = self.reader.get("checkpoint", name.encode())
            return records.decode(value, records.CheckpointRecord) if value is not None else None
        except DamagedRecordError:
            if self._damaged is None:
                raise
            self._damaged(name)
            return None

    def _find_shown(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = defaultdict(list)
        epochs = []
        for key, value in self.reader.backwards("epoch"):
            epoch = keys.unpack_id(key)
            record = self._epochs[epoch] = records.decode(value, records.EpochRecord)
            epochs.append(epoch)
            if epoch:
                children[record.parent].append(epoch)
        shown: dict[int, list[int]] = {}
        for epoch in epochs:  # children before their parents
            if epoch in (0, self.head) or self.checkpoint(epoch):
                shown[epoch] = [epoch]
            else:
                shown[epoch] = [
                    state for child in children[epoch] for state in shown.get(child, ())
                ]
        return shown
