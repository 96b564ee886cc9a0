"""Segments and the parts of them that blocks are."""

from __future__ import annotations

import random

import pytest

from cowfs.errors import DamagedRecordError
from cowfs.format import codec
from cowfs.format.segment import (
    Part,
    beginning,
    encode_part,
    encode_segment,
    is_segment,
    may_refer,
    part_of,
    sound_beginning,
)
from cowfs.types import BLOCK_SIZE

PIECES = [random.Random(number).randbytes(20_000) + b"text " * 2000 for number in range(20)]
WHOLE = b"".join(PIECES)
DIGEST = codec.block_hash(WHOLE)
VALUE = encode_segment(WHOLE)
NUMBER = 12
START = sum(map(len, PIECES[:NUMBER]))
PART = Part(DIGEST, START, START + len(PIECES[NUMBER]))


def test_a_segment_is_a_block_that_stands_alone() -> None:
    assert codec.delta_reference(VALUE) is None
    assert codec.decode_block(VALUE, DIGEST) == WHOLE
    assert is_segment(VALUE)
    assert not is_segment(codec.encode_block(bytes(BLOCK_SIZE)))


def test_a_part_comes_back() -> None:
    value = encode_part(PART)
    assert (part_of(value), codec.delta_reference(value)) == (PART, DIGEST)
    assert codec.decode_block(value, codec.block_hash(PIECES[NUMBER]), WHOLE) == PIECES[NUMBER]
    assert codec.decode_block(value, codec.block_hash(PIECES[NUMBER]), WHOLE[: PART.end])


@pytest.mark.parametrize("value", [VALUE, b"\0" + VALUE[1:5] + WHOLE], ids=["zstd", "raw"])
def test_the_beginning_needs_no_more_than_that(value: bytes) -> None:
    cut = value[: len(value) * (NUMBER + 4) // len(PIECES)]
    assert beginning(cut, DIGEST, PART.end) == WHOLE[: PART.end]
    assert beginning(value, DIGEST, 1 << 30) == WHOLE


def test_what_is_damaged_is_sound_up_to_there() -> None:
    at = len(VALUE) * 2 // 3
    found = sound_beginning(VALUE[:at] + bytes(len(VALUE) - at))
    assert len(WHOLE) // 3 < len(found) < len(WHOLE)
    assert WHOLE.startswith(found[: len(WHOLE) // 3])
    assert sound_beginning(VALUE) == WHOLE


@pytest.mark.parametrize(
    "value", [b"", b"\1", encode_part(PART), b"\1\xff\xff\xff\xff" + VALUE[5:], VALUE[:5] + b"x"]
)
def test_what_is_no_segment_is_damaged(value: bytes) -> None:
    with pytest.raises(DamagedRecordError, match="segment"):
        beginning(value, DIGEST, 10)


@pytest.mark.parametrize("at", range(len(encode_part(PART))))
def test_every_flipped_byte_of_a_part_is_detected(at: int) -> None:
    value = bytearray(encode_part(PART))
    value[at] ^= 0x01
    if codec.delta_reference(bytes(value)) != DIGEST:
        return  # another segment is wanted: the caller finds that it is missing
    with pytest.raises(DamagedRecordError):
        codec.decode_block(bytes(value), codec.block_hash(PIECES[NUMBER]), WHOLE)


@pytest.mark.parametrize("size", range(len(encode_part(PART))))
def test_every_cut_of_a_part_is_detected(size: int) -> None:
    value = encode_part(PART)[:size]
    with pytest.raises(DamagedRecordError):
        codec.decode_block(value, codec.block_hash(PIECES[NUMBER]), WHOLE)


def test_what_may_need_what() -> None:
    part, alone = encode_part(PART), codec.encode_block(b"alone")
    delta = codec.encode_delta(PIECES[0], WHOLE[:BLOCK_SIZE], DIGEST)
    assert may_refer(part, VALUE)
    assert may_refer(part, alone)
    assert not may_refer(part, part)
    assert not may_refer(part, delta)
    assert may_refer(delta, part)
    assert may_refer(delta, alone)
    assert not may_refer(delta, delta)
