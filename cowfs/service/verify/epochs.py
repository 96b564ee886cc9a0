"""Checks of the history: format, epochs, branches, checkpoints, labels, operations.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records, version
from cowfs.service.verify.scan import Scan

_T = TypeVar("_T", bound=msgspec.Struct)
_ID = re.compile(r"[0-9a-f]{12}")


def check_history(scan: Scan) -> None:
    """Read all small tables, and fill `scan.history`."""
    _format(scan)
    branches = dict(_decoded(scan, "branch", records.BranchRecord))
    for key, epoch in _decoded(scan, "epoch", records.EpochRecord):
        if len(key) != 8:
            _damaged(scan, "epoch", key, f"its key has {len(key)} bytes, not 8")
            continue
        scan.history.add(keys.unpack_id(key), epoch)
    scan.history.heads = [record.head for record in branches.values()]
    checkpoints = _checkpoints(scan)
    _labels(scan, checkpoints)
    _epochs(scan, set(scan.history.heads))
    _sealing(scan, checkpoints)
    _branches(scan, branches, checkpoints)
    _applying(scan)
    _operations(scan)


def check_counters(scan: Scan) -> None:
    """`next_id` and `next_epoch` are greater than everything in use (after all other passes)."""
    largest = {"next_id": scan.largest, "next_epoch": max(scan.history.epochs, default=0)}
    for name, used in largest.items():
        value = scan.reader.get("meta", name.encode())
        if value is None or len(value) != 8:
            what = "is missing" if value is None else f"has {len(value)} bytes, not 8"
            scan.problem("counter", "meta", name, f"it {what}")
        elif (following := keys.unpack_id(value)) <= used:
            scan.problem("counter", "meta", name, f"it is {following}, but {used} is in use")


def _damaged(scan: Scan, table: str, key: bytes, detail: str) -> None:
    name = key.decode("ascii", "backslashreplace") if key.isascii() else key.hex()
    scan.problem("record", table, name if name.isprintable() else key.hex(), detail)


def _decoded(scan: Scan, table: str, kind: type[_T]) -> Iterator[tuple[bytes, _T]]:
    """All records of a table that decode; the others are reported."""
    for key, value in scan.each(table):
        try:
            yield key, records.decode(value, kind)
        except DamagedRecordError as error:
            name = key.hex() if table == "epoch" or table == "operation" else key.decode("latin-1")
            scan.problem("record", table, name, error.details["detail"])


def _format(scan: Scan) -> None:
    for _ in scan.each("meta"):
        pass
    value = scan.reader.get("meta", b"format")
    if value is None:
        scan.problem("format", "meta", "format", "it is missing")
        return
    try:
        record = records.decode(value, records.FormatRecord)
    except DamagedRecordError as error:
        scan.problem("format", "meta", "format", error.details["detail"])
        return
    if reason := version.unreadable_reason(record):
        scan.problem("format", "meta", "format", f"it says {reason}")
    elif record.version < 1 or not re.fullmatch(r"[0-9a-f]{32}", record.uuid):
        scan.problem("format", "meta", "format", f"version {record.version}, uuid {record.uuid!r}")


def _epochs(scan: Scan, heads: set[int]) -> None:
    history = scan.history
    for epoch, record in history.epochs.items():
        problem = _epoch_parent(scan, epoch, record)
        if problem:
            scan.problem("epoch-parent", "epoch", f"{epoch}", problem)
        elif record.run_start != history.run_start(epoch) is not None:
            scan.problem(
                "epoch-run",
                "epoch",
                f"{epoch}",
                f"its run starts at {record.run_start}, not at {history.run_start(epoch)}",
                states=[s for s in history.states if s[1].visible(epoch)],
            )
        if epoch in heads and record.sealed:
            scan.problem("epoch-open", "epoch", f"{epoch}", "it is a branch's head, but sealed")
        elif epoch not in heads and not record.sealed:
            scan.problem("epoch-open", "epoch", f"{epoch}", "it is open, but no branch's head")
        if record.opened <= 0 or record.sealed < 0:
            scan.problem(
                "epoch-time", "epoch", f"{epoch}", f"opened {record.opened}, sealed {record.sealed}"
            )
    if 0 not in history.epochs:
        scan.problem("epoch-parent", "epoch", "0", "it is missing")


def _sealing(scan: Scan, checkpoints: dict[str, records.CheckpointRecord]) -> None:
    """An epoch and the checkpoint that sealed it name each other."""
    wrong = checkpoints.keys() - {record.id for record in scan.history.checkpoints}
    for epoch, record in scan.history.epochs.items():
        name = record.checkpoint
        if not name or name in wrong:
            continue
        found = checkpoints.get(name)
        if found is None:
            detail = f"checkpoint {name}, which sealed it, does not exist"
        elif found.epoch != epoch:
            detail = f"checkpoint {name}, which sealed it, belongs to epoch {found.epoch}"
        else:
            continue
        states = [state for state in scan.history.states if state[1].head == epoch]
        scan.problem("epoch-checkpoint", "epoch", f"{epoch}", detail, states=states)


def _epoch_parent(scan: Scan, epoch: int, record: records.EpochRecord) -> str:
    if epoch == 0:
        return "" if record.parent == 0 else f"epoch 0 has the parent {record.parent}"
    if record.parent >= epoch:
        return f"its parent {record.parent} is not older"
    above = scan.history.epochs.get(record.parent)
    if above is None:
        return f"its parent {record.parent} does not exist"
    return ""


def _checkpoints(scan: Scan) -> dict[str, records.CheckpointRecord]:
    history, found = scan.history, {}
    for key, record in _decoded(scan, "checkpoint", records.CheckpointRecord):
        name = key.decode("latin-1")
        if name != record.id or not _ID.fullmatch(name):
            scan.problem("record", "checkpoint", name, f"its key does not fit its id {record.id!r}")
            continue
        found[name] = record
        epoch = history.epochs.get(record.epoch)
        if epoch is None:
            detail = f"its epoch {record.epoch} does not exist"
            scan.problem("checkpoint-epoch", "checkpoint", name, detail, checkpoints=[name])
            continue
        if record.epoch in history.heads:
            detail = f"its epoch {record.epoch} is still open"
            scan.problem("checkpoint-epoch", "checkpoint", name, detail, checkpoints=[name])
            continue
        history.checkpoints.append(record)
    return found


def _labels(scan: Scan, checkpoints: dict[str, records.CheckpointRecord]) -> None:
    labels = {}
    for key, value in scan.each("label"):
        label, target = key.decode("latin-1"), value.decode("latin-1")
        labels[label] = target
        record = checkpoints.get(target)
        if record is None:
            detail = f"there is no checkpoint {target}"
            scan.problem("label", "label", label, detail)
        elif record.label != label:
            detail = f"checkpoint {target} has the label {record.label!r}"
            scan.problem("label", "label", label, detail, checkpoints=[target])
    for record in checkpoints.values():
        if record.label and record.label not in labels:
            detail = f"the label {record.label!r} of checkpoint {record.id} is missing"
            scan.problem("label", "label", record.label, detail, checkpoints=[record.id])


def _branches(
    scan: Scan,
    branches: dict[bytes, records.BranchRecord],
    checkpoints: dict[str, records.CheckpointRecord],
) -> None:
    epochs = scan.history.epochs
    if not branches:
        scan.problem("branch", "branch", "main", "there is no branch")
    for key, record in branches.items():
        name = key.decode("utf-8", "backslashreplace")
        if record.name != name:
            scan.problem("branch", "branch", name, f"its record is named {record.name!r}")
        for what, epoch in (("head", record.head), ("applied epoch", record.applied)):
            if epoch not in epochs:
                scan.problem("branch", "branch", name, f"its {what} {epoch} does not exist")
        for what, stack in (("undo", record.undo), ("redo", record.redo)):
            for missing in [item for item in stack if item not in checkpoints]:
                detail = f"its {what} stack names checkpoint {missing}, which does not exist"
                scan.problem("branch", "branch", name, detail)


def _applying(scan: Scan) -> None:
    """The epoch of an `apply` that was interrupted."""
    value = scan.reader.get("meta", b"applying")
    if value is not None and (len(value) != 8 or keys.unpack_id(value) not in scan.history.epochs):
        scan.problem("applying", "meta", "applying", "the epoch to apply does not exist")


def _operations(scan: Scan) -> None:
    last = max(scan.history.epochs, default=0)
    for key, record in _decoded(scan, "operation", records.OperationRecord):
        if len(key) != 8 or keys.unpack_id(key) != record.seq:
            detail = f"its key does not fit its number {record.seq}"
            scan.problem("operation", "operation", key.hex(), detail)
        elif not 0 <= record.before <= record.after <= last:
            detail = f"its epochs {record.before} and {record.after} are not in order or not used"
            scan.problem("operation", "operation", f"{record.seq}", detail)
