"""Epochs, checkpoints and operations: an end of an epoch is told by all three.

Where one is gone it is made of the others. Where they say different things, what most of them say
is taken for true; where only two speak, nothing is changed.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.service.repair.bench import REBUILT, Bench
from cowfs.volume.volume import MAIN

_ID = re.compile(r"[0-9a-f]{12}")
_T = TypeVar("_T", bound=msgspec.Struct)
_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def decodable(bench: Bench, table: str, kind: type[_T]) -> dict[bytes, _T]:
    """By key, what of a table decodes."""
    found = {}
    for key, value in bench.reader.scan(table):
        try:
            found[key] = records.decode(value, kind)
        except DamagedRecordError:
            continue
    return found


def mend_epochs(bench: Bench) -> bool:
    """Repair the three tables; whether anything was done."""
    _Ends(bench).mend()
    return bench.apply()


class _Ends:
    """Epochs by number, checkpoints by id, operations by number: as stored, and as they will be."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stored: dict[tuple[str, bytes], msgspec.Struct] = {}
        self.epochs = {
            keys.unpack_id(key): record
            for key, record in self._read("epoch", records.EpochRecord).items()
            if len(key) == 8
        }
        self.operations = {
            keys.unpack_id(key): record
            for key, record in self._read("operation", records.OperationRecord).items()
            if len(key) == 8
        }
        self.checkpoints = {record.id: record for record in self._read_checkpoints()}

    def _read_checkpoints(self) -> Iterator[records.CheckpointRecord]:
        """By their own ids; by its key one that has an id of which nobody else tells."""
        known = {record.checkpoint for record in self.epochs.values()}
        known |= {record.checkpoint for record in self.operations.values()}
        known.discard("")
        for key, record in self._read("checkpoint", records.CheckpointRecord).items():
            if record.id not in known and (name := key.decode("latin-1")) in known:
                yield msgspec.structs.replace(record, id=name)
            elif _ID.fullmatch(record.id):
                yield record

    def _read(self, table: str, kind: type[_Struct]) -> dict[bytes, _Struct]:
        found = decodable(self._bench, table, kind)
        self._stored |= {(table, key): record for key, record in found.items()}
        return found

    def mend(self) -> None:
        """Compare, complete, and write what is different."""
        for seq in sorted(self.operations):
            self._agree(seq)
        self._impossible_states_of_git()
        self._missing_epochs()
        self._missing_checkpoints()
        self._missing_operations()
        self._lonely_heads()
        self._lines()
        self._write()

    # -- three that say the same ----------------------------------------------------------------

    def _agree(self, seq: int) -> None:
        """One operation, the checkpoint that it made, the epoch that it ended and the one that it
        opened."""
        operation = msgspec.structs.replace(self.operations[seq], seq=seq)
        self.operations[seq] = operation
        checkpoint = self.checkpoints.get(operation.checkpoint)
        if checkpoint is None:
            return
        sealed = [n for n, record in self.epochs.items() if record.checkpoint == checkpoint.id]
        number = _most([operation.before, checkpoint.epoch, *sealed], 2)
        if number not in self.epochs:
            return
        epoch, after = self.epochs[number], self.epochs.get(operation.after)
        times = [seq, operation.time, checkpoint.time, epoch.sealed]
        time = _most(times + ([after.opened] if after is not None else []), 3)
        if time < 0:
            return
        self.operations[seq] = msgspec.structs.replace(operation, time=time, before=number)
        self.checkpoints[checkpoint.id] = msgspec.structs.replace(
            checkpoint, time=time, epoch=number
        )
        self.epochs[number] = msgspec.structs.replace(epoch, sealed=time, checkpoint=checkpoint.id)
        if after is not None and operation.after != number:
            self.epochs[operation.after] = msgspec.structs.replace(after, opened=time)

    def _impossible_states_of_git(self) -> None:
        """Nothing else tells of them."""
        for name, record in self.checkpoints.items():
            if not records.is_possible(record.git):
                self.checkpoints[name] = msgspec.structs.replace(record, git=records.GitState())

    # -- what is gone ---------------------------------------------------------------------------

    def _missing_epochs(self) -> None:
        opened = {record.after: record for record in self.operations.values()}
        sealed = {record.epoch: record for record in self.checkpoints.values()}
        for number in sorted((opened.keys() | sealed.keys()) - self.epochs.keys()):
            by, end = opened.get(number), sealed.get(number)
            if number > 1 and by is None:
                continue
            self.epochs[number] = records.EpochRecord(
                self._opened_from(by) if by is not None else 0,
                0,
                MAIN,
                by.time if by is not None else end.time if end is not None else 0,
                end.time if end is not None else 0,
                end.counts if end is not None else records.Counts(),
                end.id if end is not None else "",
            )

    def _opened_from(self, by: records.OperationRecord) -> int:
        """The parent of an epoch of which only the operation that opened it is known. A restore of
        single paths is taken for one of everything: the state before is a checkpoint."""
        target = self.checkpoints.get(by.detail)
        return by.before if by.kind == "checkpoint" or target is None else target.epoch

    def _missing_checkpoints(self) -> None:
        """All but the message, and whether an apply made it, is told elsewhere."""
        made = {record.checkpoint: record for record in self.operations.values()}
        labels = {value: key for key, value in self._bench.reader.scan("label")}
        for number, epoch in self.epochs.items():
            name, by = epoch.checkpoint, made.get(epoch.checkpoint)
            if not name or name in self.checkpoints or (by is None and number):
                continue
            if by is not None and by.before != number:
                continue
            kind = "start" if by is None else "manual" if by.kind == "checkpoint" else "rescue"
            record = records.CheckpointRecord(
                name,
                number,
                epoch.branch,
                kind,
                epoch.sealed,
                label=labels.get(name.encode(), b"").decode("ascii", "replace"),
                counts=epoch.counts,
            )
            if by is not None:
                record = msgspec.structs.replace(
                    record,
                    uid=by.uid,
                    user=by.user,
                    pid=by.pid,
                    command=by.command,
                    target=by.detail,
                )
            self.checkpoints[name] = record

    def _missing_operations(self) -> None:
        """Which of restore, undo and redo it was is not told elsewhere."""
        known = {record.checkpoint for record in self.operations.values()}
        opened = {record.opened: number for number, record in self.epochs.items() if number > 1}
        for name, record in self.checkpoints.items():
            sealed = self.epochs.get(record.epoch)
            if name in known or not record.epoch or record.time not in opened:
                continue
            if sealed is None or sealed.sealed != record.time:
                continue
            self.operations[record.time] = records.OperationRecord(
                record.time,
                record.time,
                "restore" if record.kind == "rescue" else "checkpoint",
                record.epoch,
                opened[record.time],
                name,
                record.uid,
                record.user,
                record.pid,
                record.command,
                record.target,
            )

    # -- epochs ---------------------------------------------------------------------------------

    def _lonely_heads(self) -> None:
        """The newest epoch, which nothing ended, is open."""
        last = max(self.epochs, default=0)
        ended = {record.before for record in self.operations.values()}
        ended |= {record.epoch for record in self.checkpoints.values()}
        if last and last not in ended:
            self.epochs[last] = msgspec.structs.replace(
                self.epochs[last], sealed=0, counts=records.Counts(), checkpoint=""
            )

    def _lines(self) -> None:
        """Parents that cannot be, and where runs start, which follows from the parents."""
        opened = {record.after: record for record in self.operations.values()}
        runs: dict[int, int] = {}
        for number in sorted(self.epochs):
            record = self.epochs[number]
            by = opened.get(number)
            if number and (record.parent >= number or record.parent not in self.epochs):
                record = msgspec.structs.replace(record, parent=self._parent(record, by))
            if number == 0 or record.parent >= number or record.parent not in runs:
                runs[number] = record.run_start if number else 0
            else:
                runs[number] = runs[record.parent] if record.parent == number - 1 else number
            self.epochs[number] = msgspec.structs.replace(record, run_start=runs[number])

    def _parent(self, record: records.EpochRecord, by: records.OperationRecord | None) -> int:
        """What the parent of an epoch must be: a restore of single paths goes on from the epoch
        before, one of everything from that of its target; the start of the run tells which."""
        if by is None:
            return record.parent
        target = self.checkpoints.get(by.detail)
        if by.kind == "checkpoint" or target is None or record.run_start < by.after:
            return by.before
        return target.epoch

    # -- writing --------------------------------------------------------------------------------

    def _write(self) -> None:
        wanted: dict[tuple[str, bytes], msgspec.Struct] = {}
        wanted |= {("epoch", keys.pack_id(n)): record for n, record in self.epochs.items()}
        wanted |= {("checkpoint", n.encode()): record for n, record in self.checkpoints.items()}
        wanted |= {("operation", keys.pack_id(n)): r for n, r in self.operations.items()}
        for place, record in wanted.items():
            if self._stored.get(place) != record:
                table, key = place
                name = key.decode("latin-1") if table == "checkpoint" else f"{keys.unpack_id(key)}"
                how = "as the others tell" if place in self._stored else "made of what others tell"
                self._bench.put(table, key, records.encode(record))
                self._bench.did(REBUILT, table, name, how)
        for table, key in self._stored.keys() - wanted.keys():
            if table == "checkpoint":
                self._bench.set_aside(table, key, key.hex(), "its key is not its id")


def _most(values: Iterable[int], least: int) -> int:
    """The value that is there at least so many times, and more often than any other; else -1 for
    numbers of epochs and times alike, which are never negative."""
    counted = Counter(values).most_common(2)
    if counted[0][1] < least or (len(counted) > 1 and counted[1][1] == counted[0][1]):
        return -1
    return counted[0][0]
