"""Every decoder, fed with arbitrary bytes and with valid ones in which something was changed: it
returns, or raises the error that it documents. Nothing else, and it asks for no huge memory."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cowfs.errors import CowfsError, DamagedRecordError
from cowfs.format import codec, keys, records, sessions
from cowfs.format.audit import AuditHead, AuditRecord, ProcessRecord
from cowfs.format.segment import Part, beginning, encode_part, part_of, sound_beginning
from cowfs.service.selectors import parse_time, resolve
from cowfs.service.workspace import describe
from cowfs.store.pages import DamagedFileError, PageCheck
from cowfs.store.snapshot import Reader
from tests.format.strategies import (
    AUDITS,
    BASES,
    CONTEXTS,
    HISTORY,
    INODES,
    SESSIONS,
    TRANSCRIPTS,
)
from tests.support.volumes import Rig

OFTEN = settings(max_examples=200, deadline=None)
SHARED = settings(OFTEN, suppress_health_check=[HealthCheck.function_scoped_fixture])
GIANT = b"\xff\xff\xff\xff"

HISTORY_KINDS = [
    records.BranchRecord,
    records.CheckpointRecord,
    records.EpochRecord,
    records.FormatRecord,
    records.OperationRecord,
    AuditHead,
    AuditRecord,
    ProcessRecord,
    sessions.ContextRecord,
    sessions.SessionRecord,
    sessions.TranscriptRecord,
]
UNPACKERS: list[Callable[[bytes], object]] = [
    records.unpack_inode,
    records.unpack_dirent,
    records.unpack_base,
    records.unpack_origin,
]


@pytest.fixture(autouse=True)
def little_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """What asks for a gigabyte more than there is fails with MemoryError, which is none of the
    documented errors. (LMDB reserves address space for its map.)"""
    if "volume" in request.fixturenames:
        yield
        return
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes with some changed, inserted, cut out, or repeated."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.one_of(st.binary(max_size=9), st.just(GIANT)))
        match draw(st.sampled_from(("replace", "insert", "cut", "repeat"))):
            case "replace":
                data[at : at + len(piece)] = piece
            case "insert":
                data[at:at] = piece
            case "cut":
                del data[at : at + len(piece)]
            case "repeat":
                data[at:at] = data[: 50 * len(piece)]
    return bytes(data)


def either(valid: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=400), mutated(valid))


def decodes_or(error: type[Exception], call: Callable[..., object], *args: Any) -> None:
    """The call returns or raises that error."""
    try:
        call(*args)
    except error:
        pass


# -- format -------------------------------------------------------------------------------------

PACKED = st.one_of(
    INODES.map(lambda r: records.pack_inode(*r)),
    BASES.map(records.pack_base),
    st.just(records.pack_dirent(7, 8)),
    st.just(records.pack_origin(0, 1, b"name")),
)


@OFTEN
@given(either(PACKED), st.sampled_from(UNPACKERS))
def test_fixed_records(value: bytes, unpack: Callable[[bytes], object]) -> None:
    decodes_or(DamagedRecordError, unpack, value)


@OFTEN
@given(
    either((HISTORY | AUDITS | SESSIONS | TRANSCRIPTS | CONTEXTS).map(records.encode)),
    st.sampled_from(HISTORY_KINDS),
)
@example(b"\xdd" + GIANT, records.BranchRecord)
@example(b"\x95\xa4main\x01\xdd" + GIANT, records.BranchRecord)
@example(b"\x92\xdb" + GIANT, records.CheckpointRecord)
@example(b"\x91" * 100_000, records.EpochRecord)
@example(b"\x95\xa4main\x01" + b"\x91" * 100_000, records.BranchRecord)
def test_records_of_history(value: bytes, kind: type[msgspec.Struct]) -> None:
    decodes_or(DamagedRecordError, records.decode, value, kind)


@OFTEN
@given(st.binary(max_size=600))
def test_keys(key: bytes) -> None:
    """Keys are taken apart without an error; that they make sense is for `verify`."""
    keys.unpack_id(key)
    keys.epoch_of(key)
    keys.dirent_name(key)
    keys.link_parts(key)
    keys.extent_block(key)
    if len(key) > 8:
        keys.change_parts(key)


BLOCKS = st.binary(max_size=300).map(lambda data: data * 20)


def claiming(size: int) -> bytes:
    """A block that says that it has `size` bytes; so does its frame (RFC 8878, 3.1.1.1)."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\0\0"
    return b"\1" + min(size, 0xFFFFFFFF).to_bytes(4, "big") + frame


def bomb(size: int) -> bytes:
    """A small block that really becomes that many zeros."""
    packer = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    piece = bytes(1 << 20)
    packed = b"".join(packer.compress(piece) for _ in range(size >> 20)) + packer.flush()
    return b"\1" + size.to_bytes(4, "big") + packed


@OFTEN
@given(either(BLOCKS.map(codec.encode_block)))
@example(claiming(1 << 60))
@example(claiming(0xFFFFFFFF))
@example(bomb(1 << 31))
@example(b"\1" + GIANT + b"x" * 100)
def test_blocks(value: bytes) -> None:
    decodes_or(DamagedRecordError, codec.decode_block, value, bytes(32))
    codec.delta_reference(value)


@OFTEN
@given(BLOCKS, either(BLOCKS.map(lambda data: codec.encode_delta(data, b"reference", bytes(32)))))
def test_deltas(reference: bytes, value: bytes) -> None:
    decodes_or(DamagedRecordError, codec.decode_block, value, bytes(32), reference)


@OFTEN
@given(either(BLOCKS.map(codec.encode_block)))
@example(claiming(1 << 60))
@example(bomb(1 << 31))
def test_segments(value: bytes) -> None:
    decodes_or(DamagedRecordError, beginning, value, bytes(32), 1 << 31)
    sound_beginning(value)


@OFTEN
@given(BLOCKS, either(st.just(encode_part(Part(bytes(32), 3, 9)))))
def test_parts(segment: bytes, value: bytes) -> None:
    decodes_or(DamagedRecordError, codec.decode_block, value, bytes(32), segment)
    part_of(value)


PIECES = st.binary(min_size=1, max_size=300).map(
    lambda data: sessions.pack_piece(sessions.chained(bytes(32), data), data * 20)
)


def claiming_piece(size: int, frame: bytes) -> bytes:
    return size.to_bytes(4, "big") + bytes(32) + frame


@OFTEN
@given(either(PIECES))
@example(claiming_piece(1 << 20, claiming(1 << 60)[5:]))
@example(claiming_piece(0xFFFFFFFF, claiming(0xFFFFFFFF)[5:]))
@example(claiming_piece(1 << 20, bomb(1 << 31)[5:]))
@example(claiming_piece(0, b""))
def test_pieces(value: bytes) -> None:
    decodes_or(DamagedRecordError, sessions.unpack_piece, value)
    decodes_or(DamagedRecordError, sessions.piece_head, value)


@OFTEN
@given(either(CONTEXTS.map(sessions.pack_context)))
@example(claiming(1 << 60)[5:])
@example(bomb(1 << 31)[5:])
@example(zstandard.ZstdCompressor(write_content_size=False).compress(b"\xc0"))
@example(zstandard.compress(b"\xdc\0\x11" + b"\x91" * 100_000))
def test_contexts(value: bytes) -> None:
    decodes_or(DamagedRecordError, sessions.unpack_context, value)


@OFTEN
@given(st.binary(max_size=40))
def test_keys_of_pieces(key: bytes) -> None:
    decodes_or(DamagedRecordError, sessions.piece_parts, key)


# -- files of a store ---------------------------------------------------------------------------

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(("base", "mountpoint", "quota", "workspaces")), inner),
    ),
    max_leaves=8,
)
DOCUMENTS = st.one_of(
    JSON.map(lambda value: json.dumps(value).encode()),
    mutated(st.just(b'{"version": 1, "base": "/b", "mountpoint": "/b", "quota": 5}')),
    st.binary(max_size=100),
    st.just(b"[" * 100_000),
    st.just(b"9" * 10_000),
)


@SHARED
@given(DOCUMENTS)
@example(b'{"base": "/b", "mountpoint": "/b", "quota": 1e999}')
@example(b'{"base": 1, "mountpoint": [], "quota": -1}')
def test_a_description(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "workspace.json").write_bytes(text)
    found = describe(tmp_path)
    assert found is None or found.quota >= 0


@SHARED
@given(st.one_of(st.binary(max_size=9000), st.binary(max_size=8000).map(lambda b: b * 2)))
def test_pages_that_are_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(data)
    decodes_or(DamagedFileError, lambda: list(PageCheck(tmp_path / "data.mdb").run()))


# -- selectors ----------------------------------------------------------------------------------

MOMENTS = st.one_of(
    st.text(max_size=30),
    st.from_regex(r"\d{1,30} ?(s|m|h|d|w|minutes|weeks) ?(ago)?", fullmatch=True),
    st.from_regex(r"\d{1,4}-\d{1,2}-\d{1,2}[ T]?\d{0,2}:?\d{0,2}", fullmatch=True),
)


@OFTEN
@given(MOMENTS, st.integers(0, 1 << 62))
@example("9" * 5000 + " minutes ago", 0)
@example("0001-01-01", 0)
@example("9999-12-31 23:59:59", 0)
def test_times(text: str, now: int) -> None:
    found = parse_time(text, now)
    assert found is None or isinstance(found, int)


SELECTORS = st.one_of(
    st.text(max_size=40),
    st.text("@~{}0123456789abcdef", max_size=20),
    MOMENTS.map(lambda text: f"@{{{text}}}"),
    st.text(min_size=500, max_size=700),
)


@SHARED
@given(SELECTORS)
@example("@~999999999")
@example("\udc80")
@example("\ud800")
@example("\0")
def test_selectors(volume: Rig, selector: str) -> None:
    volume.volume.sync()
    with Reader(volume.volume.store) as reader:
        branch = reader.branch("main")
        decodes_or(CowfsError, resolve, reader, reader.lineage(branch.head), selector, 1 << 60)


@OFTEN
@given(st.text(max_size=30))
@example("1e999G")
@example("nan")
@example("infT")
@example("-1")
def test_sizes(text: str) -> None:
    import click

    from cowfs.cli.command import Size

    decodes_or(click.UsageError, Size().convert, text, None, None)
