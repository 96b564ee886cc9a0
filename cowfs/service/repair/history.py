"""Labels, the branch, counters and the format record: what they are follows from other records.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

import re
import uuid

import msgspec

from cowfs.errors import DamagedRecordError
from cowfs.format import condensed, keys, records, version
from cowfs.format.checksum import DAMAGED
from cowfs.format.copying import COMMITTED, COPYING, CopyingRecord, copying_session, fault
from cowfs.format.segment import part_of
from cowfs.service.repair.bench import REBUILT, RESTORED, Bench
from cowfs.service.repair.epochs import decodable, mend_epochs
from cowfs.volume.removing import GARBAGE
from cowfs.volume.volume import MAIN

_CHECKS = {
    "record",
    "format",
    "label",
    "branch",
    "epoch-run",
    "epoch-open",
    "epoch-time",
    "epoch-parent",
    "epoch-checkpoint",
    "checkpoint-epoch",
    "operation",
    "applying",
    "garbage",
    "copying",
    "counter",
    "dictionary",
}
DROPPED = "dropped: files `.cowfs-*` may be left beside a conversation, and can be deleted"
"""What is said of the record of a copy that was on its way."""


def mend_history(bench: Bench) -> bool:
    """Repair the small tables; whether anything was done."""
    if not bench.checks & _CHECKS:
        return False
    done = mend_epochs(bench)
    _labels(bench)
    _branch(bench)
    _meta(bench)
    return bench.apply() or done


def _labels(bench: Bench) -> None:
    """Labels follow from checkpoints."""
    wanted = {
        record.label.encode(): key
        for key, record in decodable(bench, "checkpoint", records.CheckpointRecord).items()
        if record.label
    }
    stored = dict(bench.reader.scan("label"))
    for label in stored.keys() - wanted.keys():
        bench.delete("label", label)
        bench.did(REBUILT, "label", label.decode("latin-1"), "dropped: no checkpoint has it")
    for label, checkpoint in wanted.items():
        if stored.get(label) != checkpoint:
            bench.put("label", label, checkpoint)
            bench.did(REBUILT, "label", label.decode(), f"of checkpoint {checkpoint.decode()}")


def _branch(bench: Bench) -> None:
    """The branch: its head is the open epoch, its stacks have only checkpoints that exist.

    The epoch that the base shows is, as far as is known, that of the last apply."""
    epochs = bench.scan.history.epochs
    checkpoints = decodable(bench, "checkpoint", records.CheckpointRecord)
    names = {record.id for record in checkpoints.values()}
    branches = decodable(bench, "branch", records.BranchRecord)
    stored = branches.get(MAIN.encode())
    opened = [epoch for epoch, record in epochs.items() if not record.sealed]
    if len(opened) != 1:
        return
    applied = max((r.epoch for r in checkpoints.values() if r.kind == "apply"), default=0)
    record = stored or records.BranchRecord(MAIN, opened[0], applied=applied)
    if record.applied not in epochs or record.applied == opened[0]:
        record = msgspec.structs.replace(record, applied=applied)
    record = msgspec.structs.replace(
        record,
        name=MAIN,
        head=opened[0],
        undo=tuple(name for name in record.undo if name in names),
        redo=tuple(name for name in record.redo if name in names),
    )
    if record != stored:
        bench.put("branch", MAIN.encode(), records.encode(record))
        what = "its stacks of undo and redo are lost" if stored is None else "what exists of it"
        bench.did(REBUILT, "branch", MAIN, f"head {record.head}, applied {record.applied}; {what}")
    for key, _ in bench.reader.scan("branch"):
        if key != MAIN.encode():
            bench.delete("branch", key)
            bench.did(REBUILT, "branch", key.decode("latin-1"), f"dropped: there is only {MAIN}")


def _meta(bench: Bench) -> None:
    """Counters, the format record, and the mark of an apply of nothing."""
    epochs = bench.scan.history.epochs
    for name, used in (("next_id", bench.scan.largest), ("next_epoch", max(epochs, default=0))):
        value = bench.get("meta", name.encode())
        if "counter" in bench.checks and (
            value is None or len(value) != 8 or keys.unpack_id(value) <= used
        ):
            bench.put("meta", name.encode(), keys.pack_id(used + 1))
            bench.did(REBUILT, "meta", name, f"{used + 1}: {used} is in use")
    if "applying" in bench.checks:
        bench.delete("meta", b"applying")
        bench.did(REBUILT, "meta", "applying", "dropped: `cowfs apply` starts anew")
    if "garbage" in bench.checks:
        for key, _ in bench.reader.scan("meta", GARBAGE):
            epoch = epochs.get(keys.unpack_id(key[len(GARBAGE) :]))
            if epoch is None or epoch.checkpoint or not epoch.sealed:
                bench.delete("meta", key)
                bench.did(REBUILT, "meta", "garbage", "dropped: no checkpoint was removed there")
    if "copying" in bench.checks:
        for key, value in bench.reader.scan("meta", COPYING):
            if not _is_sound_copy(bench, key, value):
                bench.delete("meta", key)
                bench.did(REBUILT, "meta", f"copying {copying_session(key)}", DROPPED)
    if "dictionary" in bench.checks:
        _dictionaries(bench)
    if "format" in bench.checks:
        _format(bench, epochs[0].opened if 0 in epochs else 0)


def _format(bench: Bench, created: int) -> None:
    """The format record: what it says of features follows from what is used."""
    bits = version.SEGMENTS if _has_parts(bench) else 0
    if _has_condensed(bench):
        bits |= version.CONDENSED
    if any(value == records.EXTENT_THINNED for _, value in bench.reader.scan("extent")):
        bits |= version.THINNED
    try:
        record = version.decode_format(bench.get("meta", b"format") or b"")
    except DamagedRecordError:
        record = version.format_record("", created)
    if version.unreadable_reason(record) or not re.fullmatch(r"[0-9a-f]{32}", record.uuid):
        record = version.format_record(uuid.uuid4().hex, created)
        detail = f"version {record.version}, with a new uuid"
    else:
        detail = "it tells of the features that are used"
    bench.put("meta", b"format", records.encode(version.with_feature(record, bits)))
    bench.did(REBUILT, "meta", "format", detail)


def _dictionaries(bench: Bench) -> None:
    """One copy from the other: the one that is longer, if both can be read."""
    for name in condensed.TABLES:
        copies = [prefix + name.encode() for prefix in (condensed.DICTIONARY, condensed.TWIN)]
        found = [bench.get("meta", key) for key in copies]
        sound = [value for value in found if value is not None and value != DAMAGED]
        if found[0] == found[1] or not sound:
            continue
        for key in copies:
            bench.put("meta", key, max(sound, key=len))
        bench.did(RESTORED, "meta", f"dictionary of {name}", "from its other copy")


def _has_parts(bench: Bench) -> bool:
    return any(part_of(value) is not None for _, value in bench.reader.scan("block"))


def _has_condensed(bench: Bench) -> bool:
    """By how inodes are stored: a compaction that condenses anything condenses them."""
    cursor = bench.scan.cursor("inode")
    found = cursor.set_range(b"")
    while found:
        if condensed.is_short(cursor.stored()[:-4]):
            return True
        found = cursor.next()
    prefix = condensed.DICTIONARY
    return next(bench.reader.scan("meta", prefix), None) is not None


def _is_sound_copy(bench: Bench, key: bytes, value: bytes) -> bool:
    """Whether a copy that was on its way can be finished."""
    try:
        record = records.decode(value, CopyingRecord)
    except DamagedRecordError:
        return False
    made = record.state != COMMITTED or bench.get("session", key[len(COPYING) :]) is not None
    return made and not fault(record)
