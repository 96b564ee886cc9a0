"""Checks of the history: format, epochs, branches, checkpoints, labels, operations.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from cowfs.errors import DamagedRecordError
from cowfs.format import condensed, keys, records, version
from cowfs.service.verify.scan import LOST, Scan
from cowfs.volume.removing import GARBAGE

_T = TypeVar("_T", bound=msgspec.Struct)
_ID = re.compile(r"[0-9a-f]{12}")
_KINDS = {
    "start",
    "manual",
    "rescue",
    "apply",
    "external",
    "auto",
    "prompt",
    "tool",
    "agent",
    "turn",
}
_OPERATIONS = {"checkpoint", "restore", "undo", "redo"}
_Checkpoints = dict[str, records.CheckpointRecord]


def check_history(scan: Scan) -> None:
    """Read all small tables, and fill `scan.history`.

    What a table with damaged pages would say is not asked for. Without a branch that can be read,
    the epochs that are open count as heads.
    """
    if scan.readable("meta"):
        _format(scan)
    branches = {}
    if scan.readable("branch"):
        branches = dict(_decoded(scan, "branch", records.BranchRecord))
    for key, epoch in _decoded(scan, "epoch", records.EpochRecord):
        if len(key) != 8:
            _damaged(scan, "epoch", key, f"its key has {len(key)} bytes, not 8")
            continue
        scan.history.add(keys.unpack_id(key), epoch)
    names = {key.decode("utf-8", "backslashreplace") for key in branches}
    scan.history.branches = names | {record.name for record in branches.values()}
    scan.history.heads = [record.head for record in branches.values()] or [
        number for number, epoch in scan.history.epochs.items() if not epoch.sealed
    ]
    scan.history.applied = {record.applied for record in branches.values()}
    if scan.readable("meta") and (value := scan.reader.get("meta", b"applying")):
        scan.history.applied.add(keys.unpack_id(value))
    checkpoints = _checkpoints(scan) if scan.readable("checkpoint") else {}
    _epochs(scan, set(scan.history.heads))
    if not scan.readable("checkpoint"):
        return
    if scan.readable("label"):
        _labels(scan, checkpoints)
    _sealing(scan, checkpoints)
    if scan.readable("branch"):
        _branches(scan, branches, checkpoints)
    if scan.readable("meta"):
        _applying(scan)
        _garbage(scan)
    if scan.readable("operation"):
        _operations(scan, checkpoints)


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
    for key, content in scan.each("meta"):
        if key.startswith(LOST):
            scan.lost.add(key[len(LOST) :])
        elif key.startswith(GARBAGE) and (len(key) != len(GARBAGE) + 8 or content):
            _damaged(scan, "meta", key, "it is no key of an epoch, or not empty")
    value = scan.reader.get("meta", b"format")
    if value is None:
        scan.problem("format", "meta", "format", "it is missing")
        return
    try:
        record = version.decode_format(value)
    except DamagedRecordError as error:
        scan.problem("format", "meta", "format", error.details["detail"])
        return
    _dictionaries(scan, record)
    if reason := version.unreadable_reason(record):
        scan.problem("format", "meta", "format", f"it says {reason}")
    elif record.version < 1 or not re.fullmatch(r"[0-9a-f]{32}", record.uuid):
        scan.problem("format", "meta", "format", f"version {record.version}, uuid {record.uuid!r}")


def _dictionaries(scan: Scan, record: records.FormatRecord) -> None:
    """Both copies of a dictionary are there, and the same."""
    for name in condensed.TABLES:
        keys_of = [prefix + name.encode() for prefix in (condensed.DICTIONARY, condensed.TWIN)]
        found = [scan.reader.get("meta", key) for key in keys_of]
        if found[0] != found[1]:
            detail = "its two copies are not the same"
            scan.problem("dictionary", "meta", f"dictionary of {name}", detail)
        elif found[0] is not None and not record.incompatible & version.CONDENSED:
            scan.problem("format", "meta", "format", "it does not tell of condensed values")
            return


def _epochs(scan: Scan, heads: set[int]) -> None:
    history = scan.history
    for epoch, record in history.epochs.items():
        found = [*_epoch_faults(scan, epoch, record, heads)]
        if found:
            history.faulty.add(epoch)
        for check, detail in found:
            seen = check == "epoch-run"
            states = [s for s in history.states if s[1].visible(epoch)] if seen else []
            scan.problem(check, "epoch", f"{epoch}", detail, states=states)
    if 0 not in history.epochs:
        scan.problem("epoch-parent", "epoch", "0", "it is missing")


def _epoch_faults(
    scan: Scan, epoch: int, record: records.EpochRecord, heads: set[int]
) -> Iterator[tuple[str, str]]:
    """(check, what is wrong) of one epoch."""
    history = scan.history
    if fault := _epoch_parent(scan, epoch, record):
        yield "epoch-parent", fault
    elif record.run_start != history.run_start(epoch) is not None:
        start = history.run_start(epoch)
        yield "epoch-run", f"its run starts at {record.run_start}, not at {start}"
    if epoch in heads and record.sealed:
        yield "epoch-open", "it is a branch's head, but sealed"
    elif epoch not in heads and not record.sealed:
        yield "epoch-open", "it is open, but no branch's head"
    elif not record.sealed and (record.checkpoint or record.counts != records.Counts()):
        yield "epoch-open", "it is open, but says what sealed it"
    if history.branches and record.branch not in history.branches:
        yield "epoch-open", f"it was opened on the branch {record.branch!r}, which does not exist"
    if record.opened <= 0 or record.sealed < 0:
        yield "epoch-time", f"opened {record.opened}, sealed {record.sealed}"


def _sealing(scan: Scan, checkpoints: _Checkpoints) -> None:
    """An epoch and the checkpoint that sealed it name each other, and say the same."""
    wrong = checkpoints.keys() - {record.id for record in scan.history.checkpoints}
    for epoch, record in scan.history.epochs.items():
        name = record.checkpoint
        if not name or name in wrong or epoch in scan.history.faulty:
            continue
        found = checkpoints.get(name)
        if found is None:
            detail = f"checkpoint {name}, which sealed it, does not exist"
        elif found.epoch != epoch:
            detail = f"checkpoint {name}, which sealed it, belongs to epoch {found.epoch}"
        elif differing := _differing(
            (record.sealed, record.branch, record.counts),
            (found.time, found.branch, found.counts),
            ("time", "branch", "counts"),
        ):
            detail = f"checkpoint {name}, which sealed it, has another {differing}"
        else:
            continue
        scan.history.faulty.add(epoch)
        states = [state for state in scan.history.states if state[1].head == epoch]
        scan.problem("epoch-checkpoint", "epoch", f"{epoch}", detail, states=states)


def _differing(one: tuple[object, ...], other: tuple[object, ...], names: tuple[str, ...]) -> str:
    """Names of the values that are not the same in both, "" when all are."""
    return ", ".join(n for n, a, b in zip(names, one, other, strict=True) if a != b)


def _epoch_parent(scan: Scan, epoch: int, record: records.EpochRecord) -> str:
    if epoch == 0:
        return "" if record.parent == 0 else f"epoch 0 has the parent {record.parent}"
    if record.parent >= epoch:
        return f"its parent {record.parent} is not older"
    above = scan.history.epochs.get(record.parent)
    if above is None:
        return f"its parent {record.parent} does not exist"
    return ""


def _checkpoints(scan: Scan) -> _Checkpoints:
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
        if record.kind not in _KINDS:
            detail = f"its kind is {record.kind!r}"
            scan.problem("checkpoint-epoch", "checkpoint", name, detail, checkpoints=[name])
        if not records.is_possible(record.git):
            detail = f"{record.git} cannot be a state of git"
            scan.problem("record", "checkpoint", name, detail, checkpoints=[name])
        history.checkpoints.append(record)
    return found


def _labels(scan: Scan, checkpoints: _Checkpoints) -> None:
    labels = {}
    damaged = len(scan.falsified)
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
    labels.update((key.decode("latin-1"), "") for _, key in scan.falsified[damaged:])
    for record in checkpoints.values():
        if record.label and record.label not in labels:
            detail = f"the label {record.label!r} of checkpoint {record.id} is missing"
            scan.problem("label", "label", record.label, detail, checkpoints=[record.id])


def _branches(
    scan: Scan,
    branches: dict[bytes, records.BranchRecord],
    checkpoints: _Checkpoints,
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
        if record.applied == record.head:
            scan.problem("branch", "branch", name, f"its applied epoch {record.applied} is open")
        for what, stack in (("undo", record.undo), ("redo", record.redo)):
            for missing in [item for item in stack if item not in checkpoints]:
                detail = f"its {what} stack names checkpoint {missing}, which does not exist"
                scan.problem("branch", "branch", name, detail)


def _garbage(scan: Scan) -> None:
    """Epochs on the list of garbage are there, and their checkpoints are not."""
    for key in scan.reader.keys("meta", GARBAGE):
        epoch = keys.unpack_id(key[len(GARBAGE) :])
        record = scan.history.epochs.get(epoch)
        if record is None or record.checkpoint or not record.sealed:
            what = "has a checkpoint, or is open" if record else "does not exist"
            scan.problem("garbage", "meta", f"garbage {epoch}", f"epoch {epoch} {what}")


def _applying(scan: Scan) -> None:
    """The epoch of an `apply` that was interrupted."""
    value = scan.reader.get("meta", b"applying")
    if value is not None and (len(value) != 8 or keys.unpack_id(value) not in scan.history.epochs):
        scan.problem("applying", "meta", "applying", "the epoch to apply does not exist")


def _operations(scan: Scan, checkpoints: _Checkpoints) -> None:
    """Operations fit their keys, the epochs between which they were made, and the checkpoint that
    each made; every checkpoint but the first was made by one."""
    faulty, last = scan.history.faulty, max(scan.history.epochs, default=0)
    epochs = {n: record for n, record in scan.history.epochs.items() if n not in faulty}
    sound = {record.id: record for record in scan.history.checkpoints if record.epoch in epochs}
    made = set()
    for key, record in _decoded(scan, "operation", records.OperationRecord):
        made.add(record.checkpoint)
        thing, detail = f"{record.seq}", ""
        if len(key) != 8 or keys.unpack_id(key) != record.seq:
            thing, detail = key.hex(), f"its key does not fit its number {record.seq}"
        elif not 0 <= record.before <= record.after <= last:
            detail = f"its epochs {record.before} and {record.after} are not in order or not used"
        elif record.time > record.seq or record.kind not in _OPERATIONS:
            detail = f"its time is {record.time}, its kind {record.kind!r}"
        elif (checkpoint := sound.get(record.checkpoint)) is not None:
            detail = _operation_fault(record, checkpoint, sound, epochs)
        if detail:
            scan.problem("operation", "operation", thing, detail)
    if len(made) == scan.report.checked["operation"]:  # else one is known to be damaged
        for name in checkpoints.keys() - made:
            if checkpoints[name].epoch:
                detail = "no operation made it"
                scan.problem("operation", "checkpoint", name, detail, checkpoints=[name])


def _operation_fault(
    record: records.OperationRecord,
    checkpoint: records.CheckpointRecord,
    checkpoints: _Checkpoints,
    epochs: dict[int, records.EpochRecord],
) -> str:
    """What is wrong between an operation and what it made."""
    names = ("epoch", "time", "uid", "user", "pid", "command", "target")
    differing = _differing(
        tuple(getattr(record, n) for n in ("before", *names[1:-1], "detail")),
        tuple(getattr(checkpoint, n) for n in names),
        names,
    )
    if differing:
        return f"checkpoint {checkpoint.id}, which it made, has another {differing}"
    opened = epochs.get(record.after)
    if opened is None:
        return ""
    if opened.opened != record.time:
        return f"epoch {record.after}, which it opened, was opened at {opened.opened}"
    target = checkpoints.get(record.detail)
    if record.detail and target is None:
        return ""  # it was removed
    if opened.parent not in (record.before, target.epoch if target is not None else None):
        return f"epoch {record.after}, which it opened, has the parent {opened.parent}"
    return ""
