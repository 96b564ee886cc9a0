"""Checksums of stored values: what is changed is told, and a single bit is found again."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records, version
from cowfs.format.checksum import Checksum, mended, of_table
from cowfs.store.env import TABLES

SEALED = [table for table in TABLES if table != "block"]
short = st.binary(max_size=100)


@given(st.sampled_from(TABLES), short, short)
def test_what_was_sealed_is_opened(table: str, key: bytes, value: bytes) -> None:
    checksum = of_table(table, version.VERSION)
    stored = checksum.seal(key, value)
    assert checksum.matches(key, stored)
    assert checksum.open(key, stored) == checksum.strip(key, stored) == value


@given(st.sampled_from(SEALED), short, short, st.data())
def test_a_flipped_bit_is_told_and_found_again(
    table: str, key: bytes, value: bytes, data: st.DataObject
) -> None:
    assume(key != b"format")
    checksum = of_table(table, version.VERSION)
    sound = bytearray(key + checksum.seal(key, value))
    bit = data.draw(st.integers(0, 8 * len(sound) - 1))
    sound[bit >> 3] ^= 1 << (bit & 7)
    damaged_key, damaged = bytes(sound[: len(key)]), bytes(sound[len(key) :])
    assume(damaged_key != b"format")
    assert not checksum.matches(damaged_key, damaged)
    with pytest.raises(DamagedRecordError):
        checksum.open(damaged_key, damaged)
    assert mended(checksum, damaged_key, damaged) == (key, checksum.seal(key, value))


@given(st.sampled_from(SEALED), short, short, short)
def test_a_value_under_another_key_is_told(
    table: str, key: bytes, other: bytes, value: bytes
) -> None:
    assume(key != other and b"format" not in (key, other))
    checksum = of_table(table, version.VERSION)
    assert not checksum.matches(other, checksum.seal(key, value))


@given(st.sampled_from(SEALED), st.sampled_from(SEALED), short, short)
def test_a_record_of_another_table_is_told(
    table: str, other: str, key: bytes, value: bytes
) -> None:
    assume(table != other and key != b"format")
    stored = of_table(table, version.VERSION).seal(key, value)
    assert not of_table(other, version.VERSION).matches(key, stored)


@given(st.sampled_from(SEALED), short, st.binary(max_size=8))
def test_what_is_cut_off_or_longer_is_told(table: str, key: bytes, value: bytes) -> None:
    assume(key != b"format")
    checksum = of_table(table, version.VERSION)
    stored = checksum.seal(key, value)
    for other in (*(stored[:size] for size in range(len(stored))), stored + b"\0"):
        assert not checksum.matches(key, other)


def test_more_than_one_bit_is_not_found_again() -> None:
    checksum = Checksum("inode")
    key = keys.inode_key(12, 3)
    stored = bytearray(checksum.seal(key, bytes(73)))
    stored[5] ^= 1
    stored[50] ^= 0x80
    assert mended(checksum, key, bytes(stored)) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_format_record_or_damaged(value: bytes) -> None:
    try:
        version.decode_format(value)
    except DamagedRecordError:
        pass


def test_every_flipped_bit_of_a_format_record_is_told() -> None:
    sound = records.encode(version.format_record("0" * 32, 1))
    for bit in range(8 * len(sound)):
        value = bytearray(sound)
        value[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(DamagedRecordError):
            version.decode_format(bytes(value))
