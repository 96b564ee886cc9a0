"""Every field of every record: what `verify` finds when a bit of it flips or a record is gone.

A flipped bit is told by the checksum, whatever the field. A wrong value that has the checksum for
it, as a defect of a program would write it, is found where other records say the same; `UNTOLD` has
the fields of which none does. The list of fields is made of the code of the format, so that a new
field needs a line here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cowfs.errors import StoreFormatError
from cowfs.format import keys, records, sessions, version
from cowfs.format.audit import AuditRecord, Operation, ProcessRecord
from cowfs.format.records import (
    BaseRecord,
    BranchRecord,
    CheckpointRecord,
    EpochRecord,
    FormatRecord,
    InodeRecord,
    OperationRecord,
    OriginRecord,
)
from cowfs.format.sessions import ContextRecord, SessionRecord, TranscriptRecord
from cowfs.store.env import TABLES
from cowfs.store.sums import SUMMED
from tests.verify.sample import Hands, Sample

Key = Callable[[Hands], bytes]

FIXED: dict[str, dict[str, tuple[int, int]]] = {
    "inode": {
        "flags": (0, 1),
        "mode": (1, 4),
        "nlink": (5, 4),
        "uid": (9, 4),
        "gid": (13, 4),
        "rdev": (17, 8),
        "size": (25, 8),
        "atime": (33, 8),
        "mtime": (41, 8),
        "ctime": (49, 8),
        "content": (57, 8),
        "base_size": (65, 8),
        "target": (73, 1),
    },
    "base": {
        "ino": (0, 8),
        "content": (8, 8),
        "kind": (16, 1),
        "mode": (17, 4),
        "dev": (21, 8),
        "st_ino": (29, 8),
        "size": (37, 8),
        "mtime": (45, 8),
        "ctime": (53, 8),
    },
    "origin": {"state": (0, 1), "parent": (1, 8), "name": (9, 1)},
    "dirent": {"ino": (0, 8), "kind": (8, 1)},
    "link": {"kind": (0, 1)},
    "xattr": {"mark": (0, 1), "value": (1, 1)},
    "extent": {"hash": (0, 32)},
    "block": {"codec": (0, 1), "length": (1, 4), "payload": (5, 100)},
    "hardlink": {"ino": (0, 8)},
    "orphan": {"content": (0, 8), "epoch": (8, 8)},
    "label": {"id": (0, 12)},
    "piece": {"length": (0, 4), "hash": (4, 32), "payload": (45, 10)},
}
"""Offset and size of the fields of values that are not msgpack (docs/format.md, "Values")."""

ARRAYS: dict[str, type[msgspec.Struct]] = {
    "epoch": EpochRecord,
    "checkpoint": CheckpointRecord,
    "operation": OperationRecord,
    "branch": BranchRecord,
    "process": ProcessRecord,
    "audit": AuditRecord,
    "session": SessionRecord,
    "transcript": TranscriptRecord,
    "context": ContextRecord,
    "meta": FormatRecord,
}

UNTOLD = {
    "inode.mode": "permissions",
    "inode.nlink": "of base files with external links, when it is too great",
    "inode.uid": "",
    "inode.gid": "",
    "inode.rdev": "of devices",
    "inode.size": "when it is greater than what was written: the rest is a hole",
    "inode.atime": "",
    "inode.mtime": "",
    "inode.ctime": "",
    "inode.base_size": "when it is less than the size",
    "inode.target": "",
    "xattr.value": "",
    "base.mode": "",
    "base.dev": "of what is no file",
    "base.st_ino": "of what is no file",
    "base.size": "of what is no file",
    "base.mtime": "of what is no file",
    "base.ctime": "of what is no file",
    "checkpoint.message": "",
    "checkpoint.kind": "when it becomes another known one",
    "checkpoint.git": "when it is possible",
    "checkpoint.pinned": "when it becomes the other one",
    "checkpoint.thinned": "of one that is thinned, when a pattern is added",
    "checkpoint.note": "",
    "operation.kind": "when it becomes another known one",
    "branch.undo": "when it becomes another checkpoint",
    "branch.redo": "when it becomes another checkpoint",
    "branch.applied": "when it becomes another sealed epoch",
    "process.pid": "",
    "process.started": "",
    "process.uid": "",
    "process.user": "",
    "process.name": "",
    "process.command": "but for its last byte",
    "process.parent": "when it becomes another older one",
    "process.session": "",
    "process.tool": "",
    "process.outside": "",
    "audit.epoch": "when it stays between those of its neighbours",
    "audit.time": "when it becomes an earlier one",
    "audit.process": "when it becomes another one",
    "audit.directories": "when they become other paths",
    "audit.operations": "when they become other possible ones",
    "audit.detail": "",
    "session.agent": "",
    "session.state": "when it becomes the other one",
    "session.started": "",
    "session.last": "",
    "session.ended": "of one that ended, when it becomes another time",
    "session.reason": "",
    "session.kind": "",
    "session.uid": "",
    "session.user": "",
    "session.pid": "",
    "session.born": "",
    "session.boot": "",
    "session.cwd": "",
    "session.transcript": "",
    "session.title": "",
    "session.prompt": "",
    "session.prompt_id": "",
    "session.version": "",
    "session.origin": "",
    "session.files": "when it becomes another one of its own",
    "transcript.name": "when it becomes another possible one",
    "transcript.path": "",
    "transcript.kind": "when it becomes the other one",
    "context.event": "when it becomes another known one",
    "context.prompt": "",
    "context.prompt_id": "",
    "context.tool": "",
    "context.cwd": "",
    "context.marks": "when it becomes that of another piece",
    "context.complete": "when it becomes the other one",
    "context.background": "when it becomes another possible number",
    "context.environment": "when it stays in order",
    "context.hidden": "",
    "context.processes": "when they become other possible ones",
    "context.files": "when they become other possible ones",
    "context.ports": "when they become other possible ones",
    "context.locks": "",
    "context.missing": "",
    "context.leaf": "",
    "meta.compatible": "bits that nobody knows are kept",
    "meta.incompatible": "a known bit that is not used only keeps older programs away",
    "meta.uuid": "",
    "meta.created": "",
}
"""Fields that no other record repeats, with the values of which that is true."""

FOUND_ELSEWHERE = {"branch.undo", "branch.redo", "branch.applied", "checkpoint.kind"} | {
    "checkpoint.pinned",
    "checkpoint.thinned",
    "operation.kind",
    "inode.mode",
    "inode.nlink",
    "inode.rdev",
    "inode.size",
    "inode.base_size",
    "inode.target",
    "base.dev",
    "base.st_ino",
    "base.size",
    "base.mtime",
    "base.ctime",
    "process.parent",
    "audit.epoch",
    "audit.time",
    "audit.process",
    "audit.directories",
    "audit.operations",
    "session.state",
    "session.ended",
    "session.files",
    "transcript.name",
    "transcript.kind",
    "context.event",
    "context.marks",
    "context.complete",
    "context.background",
    "context.environment",
    "context.processes",
    "context.files",
    "context.ports",
    "meta.incompatible",
}
"""Those of `UNTOLD` of which the other values are found."""

REFUSED = {"meta.version", "meta.incompatible", "meta.block_size"}
"""A store that says something else there is taken for a newer one, and not opened."""

DROPPED_UNSEEN = {"meta": "how the top of the base was; epoch 0 is taken for that"}
"""Tables of which a single record may vanish without a trace in others."""


def fields() -> list[str]:
    found = [f"{table}.{name}" for table, places in FIXED.items() for name in places]
    for table, kind in ARRAYS.items():
        found += [f"{table}.{name}" for name in kind.__struct_fields__]
    return found


def test_the_list_of_fields_is_that_of_the_format() -> None:
    assert FIXED.keys() | ARRAYS.keys() | {"change"} == set(TABLES)
    for table, kind in (("inode", InodeRecord), ("base", BaseRecord), ("origin", OriginRecord)):
        assert list(FIXED[table]) == list(kind._fields)
    sizes = {"inode": records.INODE_FIXED, "base": 61, "dirent": 9, "orphan": 16}
    for table, size in sizes.items():
        places = [place for name, place in FIXED[table].items() if name != "target"]
        assert sum(length for _, length in places) == size
    assert set(fields()) >= UNTOLD.keys() | REFUSED


def test_what_cannot_be_found_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "format.md"
    text = page.read_text(encoding="utf-8").partition("## What verify cannot see")[2]
    text = text.partition("\n## ")[0]
    assert set(re.findall(r"^- `(\w+)`:", text, re.M)) == DROPPED_UNSEEN.keys()


def target(hands: Hands, table: str) -> bytes:
    """A record whose fields all have a meaning: of something that the head shows."""
    inos = hands.inos
    found: dict[str, bytes] = {
        "inode": keys.inode_key(inos["fresh"], 4),
        "base": keys.base_key(inos["docs"], b"readme"),
        "origin": keys.pack_id(inos["docs/readme"]),
        "dirent": keys.dirent_key(1, b"fresh", 4),
        "link": keys.link_key(inos["fresh"], 1, b"fresh", 4),
        "xattr": keys.xattr_key(inos["src/main"], b"user.a", 1),
        "extent": keys.extent_key(inos["fresh"], 0, 4),
        "block": hands.extent("fresh", 0, 4)[1],
        "hardlink": hands.rows("hardlink")[0][0],
        "orphan": keys.pack_id(inos["three"]),
        "label": b"v1",
        "epoch": keys.pack_id(2),
        "operation": hands.rows("operation")[1][0],
        "branch": b"main",
        "process": keys.pack_id(3),
        "audit": hands.rows("audit")[1][0],
        "session": b"s1",
        "transcript": keys.pack_id(1),
        "piece": sessions.piece_key(1, 16),
        "meta": b"format",
    }
    if table in ("checkpoint", "context"):
        for key, value in hands.rows("checkpoint"):
            if records.decode(value, CheckpointRecord).epoch == 2:
                return key
    return found[table]


def unpacked(table: str, value: bytes) -> msgspec.Struct:
    return (
        sessions.unpack_context(value)
        if table == "context"
        else records.decode(value, ARRAYS[table])
    )


def packed(record: msgspec.Struct) -> bytes:
    return (
        sessions.pack_context(record)
        if isinstance(record, ContextRecord)
        else records.encode(record)
    )


def prepare(hands: Hands, table: str) -> None:
    """What the sample does not have, so that every table has a record."""
    if table == "orphan":
        ino = hands.inos["three"]
        hands.put("orphan", keys.pack_id(ino), keys.extent_prefix(ino, 3))


def changed(value: Any) -> Iterator[Any]:
    """Other values of the same type, as a flipped bit makes them."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value ^ 1, value ^ 1 << 20)
    elif isinstance(value, str):
        yield ("1" if value[:1] == "0" else "0") + value[1:]  # of an id, one that could be
    elif isinstance(value, bytes):
        yield bytes((value[0] ^ 1,)) + value[1:]
    elif value and isinstance(value, tuple) and isinstance(value[0], Operation):
        yield tuple(msgspec.structs.replace(value[0], ino=value[0].ino ^ 1) for _ in value)
        yield tuple(msgspec.structs.replace(value[0], directory=1) for _ in value)
    elif value and isinstance(value, tuple) and isinstance(value[0], bytes):
        yield (b"other", *value[1:])
        yield (b"/", *value[1:])
    elif value and isinstance(value, tuple) and isinstance(value[0], sessions.Mark):
        yield tuple(msgspec.structs.replace(mark, length=mark.length ^ 1) for mark in value)
        yield tuple(msgspec.structs.replace(mark, hash=bytes(32)) for mark in value)
        yield tuple(msgspec.structs.replace(mark, transcript=77) for mark in value)
    elif value and isinstance(value, tuple) and isinstance(value[0], msgspec.Struct):
        for name in value[0].__struct_fields__:
            for other in changed(getattr(value[0], name)):
                yield (msgspec.structs.replace(value[0], **{name: other}), *value[1:])
    elif value and isinstance(value, tuple) and isinstance(value[0], tuple):
        yield (("LANG", "en"), *value[1:])
        yield value[::-1]
    elif value and isinstance(value, tuple) and isinstance(value[0], int):
        yield (77, *value[1:])
        yield value[::-1]
    elif isinstance(value, tuple):
        yield ("0" * 12, *value[1:])
    elif isinstance(value, sessions.ToolCall):
        for name in value.__struct_fields__:
            yield msgspec.structs.replace(value, **{name: "other"})
    elif isinstance(value, records.GitState):
        yield msgspec.structs.replace(value, index_size=value.index_size ^ 1)
        yield msgspec.structs.replace(value, branch="other")
    else:
        yield msgspec.structs.replace(value, modified=value.modified ^ 1)


def is_refused(sample: Sample) -> bool:
    try:
        sample.verify()
    except StoreFormatError:
        return True
    return False


def test_a_flipped_bit_anywhere(sound_sample: Sample, tmp_path: Path) -> None:
    """Of every byte of a record of every table, its checksum and its key included; in one record of
    each table at the same time."""
    with sound_sample.copy(tmp_path / "list").open() as hands:
        wanted = {}
        for table in TABLES:
            prepare(hands, table)
            key = hands.rows(table)[-1][0] if table == "change" else target(hands, table)
            wanted[table] = key, hands.stored(table, key)
    longest = max(len(stored) for _, stored in wanted.values())
    sample = sound_sample.copy(tmp_path / "store")
    for at in range(longest):
        with sample.open() as hands:
            prepare(hands, "orphan")
            for table, (key, stored) in wanted.items():
                place = at % len(stored)
                bit = bytes((stored[place] ^ 1 << at % 8,))
                hands.store(table, key, stored[:place] + bit + stored[place + 1 :])
        problems = sample.verify().problems
        for table, (key, _) in wanted.items():
            found = [p for p in problems if p.table == table]
            checks = {"block": {"block-damaged", "block-reference"}, "meta": {"format"}}
            wanted_checks = checks.get(table, {"record-checksum"})
            assert wanted_checks & {p.check for p in found}, (table, at)
            assert any(p.thing.endswith(keys.thing(table, key)) for p in found), (table, at)


@pytest.mark.parametrize("field", fields())
def test_another_value_of_each_field(sample: Sample, field: str) -> None:
    table, _, name = field.partition(".")
    values = []
    with sample.open() as hands:
        prepare(hands, table)
        key = target(hands, table)
        old = hands.get(table, key)
        if table in FIXED:
            offset, size = FIXED[table][name]
            places = range(offset, min(offset + size, len(old)) or 1)
            values = [old[:at] + bytes((old[at] ^ 4,)) + old[at + 1 :] for at in places]
            if name == "target":
                values = [old + b"x"]
        else:
            record = unpacked(table, old)
            for value in changed(getattr(record, name)):
                replaced = msgspec.structs.replace(record, **{name: value})
                if isinstance(replaced, FormatRecord) and name != "checksum":
                    replaced = version.sealed(replaced)
                values.append(packed(replaced))
    missed = 0
    for value in values:
        with sample.open() as hands:
            hands.put(table, key, value)
        if field in REFUSED and is_refused(sample):
            continue
        report = sample.verify()
        missed += not (report.problems or report.notes)
    assert not missed or field in UNTOLD, f"{missed} of {len(values)} unseen"
    if field in UNTOLD and field not in FOUND_ELSEWHERE:
        assert missed == len(values), "it is found: take it out of the list"


@pytest.mark.parametrize("table", TABLES)
def test_a_record_that_is_gone(sound_sample: Sample, tmp_path: Path, table: str) -> None:
    """Whichever it is, but for tables whose records nothing repeats."""
    with sound_sample.copy(tmp_path / "list").open() as hands:
        prepare(hands, table)
        wanted = [key for key, _ in hands.rows(table)]
    missed = []
    for number, key in enumerate(wanted):
        sample = sound_sample.copy(tmp_path / str(number))
        with sample.open() as hands:
            prepare(hands, table)
        with sample.open(recount=False) as hands:
            hands.drop(table, key)
        report = sample.verify()
        if not report.problems and not report.notes:
            missed.append(key)
    assert bool(missed) == (table in DROPPED_UNSEEN), missed
    assert table != "meta" or missed == [b"base_root"]


@pytest.mark.parametrize("table", sorted(SUMMED))
def test_another_record_under_a_key_with_its_checksum(sample: Sample, table: str) -> None:
    """As one that was there before and came back."""
    with sample.open() as hands:
        prepare(hands, table)
        key = target(hands, table)
        old = hands.get(table, key)
        other = next((v for k, v in hands.rows(table) if v not in (old, b"")), old[:-1] + b"?")
    with sample.open(recount=False) as hands:
        hands.put(table, key, other)
    found = sample.verify().problems
    assert found
    assert {p.table for p in found} >= {table} or found[0].check != "record-sum"


@pytest.mark.parametrize("table", TABLES)
def test_a_bit_of_each_key(sound_sample: Sample, tmp_path: Path, table: str) -> None:
    """A record under another key is one that is gone and one too many."""
    chosen = tmp_path / "list"
    with sound_sample.copy(chosen).open() as hands:
        prepare(hands, table)
        key = hands.rows(table)[-1][0] if table == "change" else target(hands, table)
    missed = []
    for at in range(len(key)):
        sample = sound_sample.copy(tmp_path / str(at))
        with sample.open() as hands:
            prepare(hands, table)
        with sample.open(recount=False) as hands:
            value = hands.get(table, key)
            hands.drop(table, key)
            hands.put(table, key[:at] + bytes((key[at] ^ 4,)) + key[at + 1 :], value)
        report = sample.verify()
        if not report.problems and not report.notes:
            missed.append(at)
    assert not missed or table in DROPPED_UNSEEN, missed
