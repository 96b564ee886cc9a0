"""Values that a compaction made shorter come back as they were."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cowfs.errors import DamagedRecordError
from cowfs.format import records, sessions
from cowfs.format.checksum import DAMAGED, of_table
from cowfs.format.condensed import (
    MARK,
    Condensed,
    compress,
    is_short,
    lengthen,
    shorten,
    unframed,
)
from cowfs.format.version import VERSION
from tests.format.strategies import INODES
from tests.format.test_golden import FILE, LINK, plain

DICTIONARY = b"a text that all the values of a table have in common, or nearly so"
KEY = bytes(8)


@settings(max_examples=300, deadline=None)
@given(INODES)
@example(FILE)
@example(LINK)
def test_an_inode_comes_back(record: records.InodeRecord) -> None:
    value = records.pack_inode(*record)
    made = shorten(value)
    assert is_short(made) or record.flags >= 0x80
    if record.flags < 0x80:
        assert lengthen(made) == value
        assert lengthen(value) == value


def test_what_a_short_inode_looks_like() -> None:
    """The examples of docs/format.md."""
    short = plain("80 a48302 01 e807 e807 00 f0a204 0c 00 187cee545cc4cd15 a7b4de75 00")
    assert shorten(records.pack_inode(*FILE)) == short
    assert lengthen(b"") == b""


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
@example(b"\x80" + b"\xff" * 79)
@example(b"\x80")
def test_arbitrary_bytes_are_an_inode_or_damaged(value: bytes) -> None:
    try:
        found = lengthen(b"\x80" + value)
    except DamagedRecordError:
        return
    records.unpack_inode(found)


@pytest.mark.parametrize("table", ["audit", "operation", "process"])
def test_a_compressed_value_comes_back(table: str) -> None:
    checksum = Condensed(table, DICTIONARY)
    value = b"\x95" + DICTIONARY[:40] + b" and more"
    made = compress(value, DICTIONARY)
    assert made[:1] == MARK
    assert len(made) < len(value)
    stored = checksum.seal(KEY, made)
    assert checksum.open(KEY, stored) == checksum.strip(KEY, stored) == value
    assert of_table(table, VERSION).matches(KEY, stored)
    assert checksum.open(KEY, checksum.seal(KEY, value)) == value
    assert compress(b"\x95xyz", DICTIONARY) == b"\x95xyz"


def test_a_context_comes_as_its_array() -> None:
    context = sessions.ContextRecord(session="s", prompt=DICTIONARY.decode())
    value = sessions.pack_context(context)
    checksum = Condensed("context", DICTIONARY)
    found = checksum.open(KEY, checksum.seal(KEY, compress(value, DICTIONARY)))
    assert found == unframed(value) == records.encode(context)
    assert sessions.unpack_context(found) == sessions.unpack_context(value) == context


@pytest.mark.parametrize("dictionary", [b"", DICTIONARY[::-1]])
def test_without_its_dictionary_it_is_damaged(dictionary: bytes) -> None:
    made = compress(b"\x95" + DICTIONARY, DICTIONARY)
    stored = Condensed("audit", DICTIONARY).seal(KEY, made)
    checksum = Condensed("audit", dictionary)
    try:
        assert checksum.open(KEY, stored) != b"\x95" + DICTIONARY
    except DamagedRecordError:
        assert checksum.examine(KEY, stored) == DAMAGED


@pytest.mark.parametrize("frame", [b"", b"x", b"\x28\xb5\x2f\xfd\xc0" + b"\xff" * 8 + b"x" * 9])
def test_what_is_no_frame_is_damaged(frame: bytes) -> None:
    checksum = Condensed("audit", DICTIONARY)
    stored = checksum.seal(KEY, MARK + frame)
    with pytest.raises(DamagedRecordError):
        checksum.open(KEY, stored)
    assert checksum.examine(KEY, stored) == DAMAGED
    assert checksum.strip(KEY, stored) == MARK + frame
