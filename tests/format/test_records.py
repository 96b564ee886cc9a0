"""Records: what goes in comes out, and what cannot be a record is refused."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowfs.errors import DamagedRecordError
from cowfs.format import records, sessions, version
from cowfs.format.audit import AuditRecord
from cowfs.types import BLOCK_SIZE
from tests.format.strategies import (
    AUDITS,
    BASES,
    CHECKPOINTS,
    CONTEXTS,
    DIGESTS,
    HISTORY,
    IDS,
    INODES,
    NAMES,
    PROCESSES,
    SESSIONS,
    TRANSCRIPTS,
    U8,
)


@given(INODES)
def test_an_inode_comes_back(record: records.InodeRecord) -> None:
    value = records.pack_inode(*record)
    assert len(value) == records.INODE_FIXED + len(record.target)
    assert records.unpack_inode(value) == record


@given(IDS, U8)
def test_a_directory_entry_comes_back(ino: int, kind: int) -> None:
    assert records.unpack_dirent(records.pack_dirent(ino, kind)) == (ino, kind)


@given(BASES)
def test_a_base_record_comes_back(record: records.BaseRecord) -> None:
    assert records.unpack_base(records.pack_base(record)) == record


@given(U8, IDS, NAMES)
def test_an_origin_comes_back(state: int, parent: int, name: bytes) -> None:
    value = records.pack_origin(state, parent, name)
    assert records.unpack_origin(value) == (state, parent, name)


@given(HISTORY)
def test_a_history_record_comes_back(record: msgspec.Struct) -> None:
    assert records.decode(records.encode(record), type(record)) == record


@given(AUDITS | PROCESSES)
def test_a_record_of_the_audit_log_comes_back(record: msgspec.Struct) -> None:
    assert records.decode(records.encode(record), type(record)) == record


@given(SESSIONS | TRANSCRIPTS | CONTEXTS)
def test_a_record_of_a_session_comes_back(record: msgspec.Struct) -> None:
    assert records.decode(records.encode(record), type(record)) == record


@given(CONTEXTS)
def test_a_context_comes_back(record: sessions.ContextRecord) -> None:
    assert sessions.unpack_context(sessions.pack_context(record)) == record


def test_of_a_context_that_is_too_large_the_conversation_stays() -> None:
    environment = tuple((f"V{n:06}", "x" * 100) for n in range(200_000))
    marks = (sessions.Mark(1, 2, bytes(32)),)
    whole = sessions.ContextRecord("s", prompt="p", marks=marks, environment=environment)
    found = sessions.unpack_context(sessions.pack_context(whole))
    assert (found.session, found.prompt, found.marks) == ("s", "p", marks)
    assert (found.environment, len(found.missing)) == ((), 1)


@given(st.binary(min_size=1, max_size=5000), DIGESTS)
def test_a_piece_comes_back(data: bytes, before: bytes) -> None:
    digest = sessions.chained(before, data)
    assert sessions.unpack_piece(sessions.pack_piece(digest, data)) == (digest, data)
    assert sessions.piece_head(sessions.pack_piece(digest, data)) == (len(data), digest)


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 9), st.integers(0, 9))
def test_pieces_are_in_the_order_of_their_bytes(one: int, at: int, two: int, to: int) -> None:
    assert (sessions.piece_key(one, at) < sessions.piece_key(two, to)) == ((one, at) < (two, to))
    assert sessions.piece_parts(sessions.piece_key(one, at)) == (one, at)


@pytest.mark.parametrize(
    ("name", "possible"),
    [
        ("main", True),
        ("subagents/agent-1.jsonl", True),
        (".hidden/..name", True),
        ("", False),
        ("/etc/passwd", False),
        ("../other", False),
        ("a/../b", False),
        ("a//b", False),
        ("a/", False),
        ("./a", False),
        ("a\0b", False),
        ("a\udc80", False),
        ("a" * 1001, False),
    ],
)
def test_names_of_files_of_a_conversation(name: str, possible: bool) -> None:
    assert sessions.is_possible_name(name) == possible


@given(st.text(max_size=20) | st.text(st.characters(categories=["Cs"]), max_size=3))
def test_any_text_can_be_made_storable(text: str) -> None:
    kept = sessions.storable(text)
    assert kept.encode().decode() == kept
    assert sessions.storable(kept) == kept


@given(AUDITS)
def test_its_paths_can_be_had_whatever_it_says(record: AuditRecord) -> None:
    for operation in record.operations:
        assert record.path(operation).endswith(operation.name)
        second = record.second_path(operation)
        assert (second is None) == (not operation.to_name)


@given(HISTORY)
def test_a_history_record_has_a_plain_form(record: msgspec.Struct) -> None:
    plain = records.to_dict(record)
    assert set(plain) == set(record.__struct_fields__)
    json.dumps(plain)


@given(HISTORY)
def test_a_later_version_may_add_fields(record: msgspec.Struct) -> None:
    fields = msgspec.msgpack.decode(records.encode(record))
    longer = msgspec.msgpack.encode([*fields, "a field of tomorrow"])
    assert records.decode(longer, type(record)) == record


def test_an_earlier_version_may_have_fewer_fields() -> None:
    short = msgspec.msgpack.encode([3, 1, "main", 1000])
    wanted = records.EpochRecord(3, 1, "main", 1000, 0, records.Counts(0, 0, 0), "")
    assert records.decode(short, records.EpochRecord) == wanted


@given(INODES, st.integers(0, records.INODE_FIXED - 1))
def test_a_short_inode_is_refused(record: records.InodeRecord, size: int) -> None:
    with pytest.raises(DamagedRecordError):
        records.unpack_inode(records.pack_inode(*record)[:size])


@given(st.binary(max_size=20))
def test_a_directory_entry_of_another_length_is_refused(value: bytes) -> None:
    if len(value) == 9:
        return
    with pytest.raises(DamagedRecordError):
        records.unpack_dirent(value)


@given(BASES, st.integers(0, 80))
def test_a_base_record_of_another_length_is_refused(record: records.BaseRecord, size: int) -> None:
    value = records.pack_base(record)
    changed = value[:size] if size < len(value) else value + b"x"
    with pytest.raises(DamagedRecordError):
        records.unpack_base(changed)


@given(st.binary(max_size=8))
def test_a_short_origin_is_refused(value: bytes) -> None:
    with pytest.raises(DamagedRecordError):
        records.unpack_origin(value)


@given(CHECKPOINTS, st.data())
def test_a_cut_off_history_record_is_refused(
    record: records.CheckpointRecord, data: st.DataObject
) -> None:
    value = records.encode(record)
    size = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(DamagedRecordError):
        records.decode(value[:size], records.CheckpointRecord)


@given(st.binary(max_size=40))
def test_garbage_is_refused_or_decodes_to_a_record(value: bytes) -> None:
    for kind in (records.EpochRecord, records.CheckpointRecord, records.BranchRecord):
        try:
            record = records.decode(value, kind)
        except DamagedRecordError:
            continue
        assert isinstance(record, kind)


@pytest.mark.parametrize(
    ("mode", "kind"), [(0o100644, 8), (0o040755, 4), (0o120777, 10), (0o010600, 1), (0o140600, 12)]
)
def test_the_kind_of_a_mode(mode: int, kind: int) -> None:
    assert records.kind_of(mode) == kind


def _format(**fields: int) -> records.FormatRecord:
    values = {
        "version": version.VERSION,
        "compatible": 0,
        "incompatible": 0,
        "block_size": BLOCK_SIZE,
    } | fields
    return records.FormatRecord(uuid="0" * 32, created=1, **values)


def test_this_version_is_readable() -> None:
    assert version.unreadable_reason(_format()) is None


def test_unknown_compatible_features_are_ignored() -> None:
    assert version.unreadable_reason(_format(compatible=1 << 40)) is None


def test_a_newer_version_is_not_readable() -> None:
    assert version.unreadable_reason(_format(version=3)) == "format version 3"


def test_unknown_incompatible_features_are_not_readable() -> None:
    reason = version.unreadable_reason(_format(incompatible=0x10))
    assert reason == "unknown incompatible features 0x10"


def test_blocks_of_another_size_are_not_readable() -> None:
    assert version.unreadable_reason(_format(block_size=4096)) == "blocks of 4096 bytes"
