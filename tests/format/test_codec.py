"""Blocks: what goes in comes out, and nothing but that ever comes out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowfs.errors import DamagedRecordError
from cowfs.format import codec
from cowfs.types import BLOCK_SIZE

TEXT = b"".join(b"line %d of a file\n" % number for number in range(3000))[:BLOCK_SIZE]
NOISE = random.Random(1).randbytes(BLOCK_SIZE)
EDITED = NOISE[:30_000] + b"an edit" + NOISE[30_007:]


@given(st.binary(max_size=3000))
def test_a_block_comes_back(data: bytes) -> None:
    value = codec.encode_block(data)
    assert codec.decode_block(value, codec.block_hash(data)) == data
    assert codec.delta_reference(value) is None


@given(st.binary(max_size=2000), st.binary(min_size=1, max_size=2000))
def test_a_delta_comes_back(data: bytes, reference: bytes) -> None:
    name = codec.block_hash(reference)
    value = codec.encode_delta(data, reference, name)
    assert codec.delta_reference(value) == name
    assert codec.decode_block(value, codec.block_hash(data), reference) == data


@given(st.binary(max_size=2000), st.binary(min_size=1, max_size=2000))
def test_a_patch_comes_back(data: bytes, reference: bytes) -> None:
    name = codec.block_hash(reference)
    value = codec.encode_patch(data, reference, name)
    assert codec.delta_reference(value) == name
    assert codec.decode_block(value, codec.block_hash(data), reference) == data


@st.composite
def edits(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """(a block, the one before it): parts are overwritten, put in, taken out."""
    before = draw(st.sampled_from([TEXT, NOISE]))[: draw(st.integers(1, BLOCK_SIZE))]
    data = before
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        new = draw(st.sampled_from([TEXT, NOISE]))[: draw(st.integers(0, 6000))]
        gone = draw(st.sampled_from([0, len(new), 100]))
        data = (data[:at] + new + data[at + gone :])[:BLOCK_SIZE]
    return data, before


@given(edits())
def test_an_edited_block_comes_back(pair: tuple[bytes, bytes]) -> None:
    data, before = pair
    value = codec.encode(data, before, codec.block_hash(before))
    reference = before if codec.delta_reference(value) else None
    assert codec.decode_block(value, codec.block_hash(data), reference) == data
    assert len(value) <= len(codec.encode_block(data)) + 100


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_block_may_be_any_buffer(kind: type) -> None:
    assert codec.encode_block(kind(TEXT)) == codec.encode_block(TEXT)
    assert codec.block_hash(kind(TEXT)) == codec.block_hash(TEXT)


def test_what_does_not_shrink_is_kept_as_it_is() -> None:
    value = codec.encode_block(NOISE)
    assert value[0] == codec.RAW
    assert len(value) == codec.HEADER_SIZE + len(NOISE)


def test_what_shrinks_is_compressed() -> None:
    value = codec.encode_block(TEXT)
    assert value[0] == codec.ZSTD
    assert len(value) < len(TEXT) // 4


def test_a_small_edit_makes_a_small_delta() -> None:
    value = codec.encode_delta(EDITED, NOISE, codec.block_hash(NOISE))
    assert len(value) < 200


def test_an_overwritten_part_of_what_does_not_compress_is_a_patch() -> None:
    data = NOISE[:8192] + NOISE[:4096] + NOISE[12288:40960] + NOISE[:4096] + NOISE[45056:]
    value = codec.encode(data, NOISE, codec.block_hash(NOISE))
    assert value[0] == codec.PATCH
    assert len(value) < 2 * 4096 + 100


@pytest.mark.parametrize("size", [300, 1000, 4096, 5000, BLOCK_SIZE])
def test_a_byte_that_is_overwritten_is_a_patch_of_one_piece(size: int) -> None:
    """Wherever it is, also where the block ends with it, or before it."""
    for at in {0, 255, 256, 299, size // 2, size - 257, size - 1}:
        data = bytearray(NOISE[:size])
        data[at] ^= 1
        value = codec.encode_patch(data, NOISE[:size], codec.block_hash(NOISE[:size]))
        assert codec.decode_block(value, codec.block_hash(data), NOISE[:size]) == data
        assert len(value) <= 1 + 4 + 32 + 1 + 2 + 5 + 256


def test_an_overwritten_part_of_what_compresses_is_a_patch_when_it_has_nothing_of_before() -> None:
    """Looking for a delta to what is wholly new takes ten times as long, and finds none."""
    half = [random.Random(n).randbytes(2048) + bytes(2048) for n in range(20)]
    before = b"".join(half[:16])
    data = b"".join(half[:3] + half[16:17] + half[4:9] + half[17:19] + half[11:16])
    value = codec.encode(data, before, codec.block_hash(before))
    assert value[0] == codec.PATCH
    assert len(value) < 3 * 2048 + 200


def test_what_has_little_of_the_version_before_stands_alone_without_looking_for_a_delta(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = [random.Random(n).randbytes(2048) + bytes(2048) for n in range(32)]
    monkeypatch.setattr(codec, "encode_delta", None)
    before, data = b"".join(half[:16]), b"".join(half[:2] + half[16:30])
    value = codec.encode(data, before, codec.block_hash(before))
    assert value == codec.encode_block(data)


def test_a_text_of_which_most_lines_moved_is_a_delta() -> None:
    lines = [b"%d %s\n" % (n, random.Random(n).randbytes(20).hex().encode()) for n in range(1200)]
    before = b"".join(lines)[:BLOCK_SIZE]
    data = b"".join([b"a new heading\n", *lines[100:], *lines[:100]])[:BLOCK_SIZE]
    value = codec.encode(data, before, codec.block_hash(before))
    assert value[0] == codec.DELTA
    assert len(value) < len(codec.encode_block(data)) // 3


def test_a_row_put_into_a_page_of_a_database_is_a_delta() -> None:
    """Rows grow from the end of a page down, places of rows from its beginning up (SQLite)."""
    rows = [b"row %d of a table with some words" % number for number in range(90)]
    page = [b"".join(rows[: 80 + n]) for n in range(2)]
    first, second = (b"head%d" % len(p) + bytes(4090 - len(p)) + p for p in page)
    rest = TEXT[8192:]
    before, data = (p.ljust(8192, b"x") + rest for p in (first, second))
    value = codec.encode(data, before, codec.block_hash(before))
    assert value[0] == codec.DELTA
    assert len(value) < 200


def test_a_line_put_into_a_text_is_a_delta() -> None:
    data = TEXT[:3000] + b"one more line\n" + TEXT[3000:-14]
    value = codec.encode(data, TEXT, codec.block_hash(TEXT))
    assert value[0] == codec.DELTA
    assert len(value) < 200


def test_what_has_nothing_of_the_version_before_stands_alone() -> None:
    other = random.Random(2).randbytes(BLOCK_SIZE)
    assert codec.encode(other, NOISE, codec.block_hash(NOISE))[0] == codec.RAW
    assert codec.encode(TEXT, NOISE, codec.block_hash(NOISE)) == codec.encode_block(TEXT)


def test_a_block_that_says_that_it_is_longer_than_a_block_is_refused() -> None:
    """What stands alone may be a segment."""
    for name in STORED:
        value, data, reference = STORED[name]
        size = (BLOCK_SIZE if reference else codec.LONGEST_SEGMENT) + 1
        longer = value[:1] + size.to_bytes(4, "big") + value[5:]
        with pytest.raises(DamagedRecordError, match=f"it says that it has {size} bytes"):
            codec.decode_block(longer, codec.block_hash(data), reference)


STORED = {
    "raw": (codec.encode_block(b"short"), b"short", None),
    "zstd": (codec.encode_block(TEXT), TEXT, None),
    "delta": (codec.encode_delta(EDITED, NOISE, codec.block_hash(NOISE)), EDITED, NOISE),
    "patch": (codec.encode_patch(EDITED, NOISE, codec.block_hash(NOISE)), EDITED, NOISE),
}


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_detected(name: str, mask: int) -> None:
    """The decoder raises, or the flip had no meaning and the very same bytes come out."""
    value, data, reference = STORED[name]
    digest = codec.block_hash(data)
    harmless = 0
    for at in range(len(value)):
        changed = value[:at] + bytes((value[at] ^ mask,)) + value[at + 1 :]
        if reference is not None and codec.delta_reference(changed) != codec.block_hash(reference):
            continue  # another reference is wanted: the caller finds that it is missing
        try:
            decoded = codec.decode_block(changed, digest, reference)
        except DamagedRecordError:
            continue
        assert decoded == data
        harmless += 1
    assert harmless < 16  # a few bits of a zstd frame mean nothing


def test_damage_is_reported_with_the_name_of_the_block() -> None:
    value, data, _ = STORED["zstd"]
    digest = codec.block_hash(data)
    with pytest.raises(DamagedRecordError, match=f"damaged block {digest.hex()[:12]}"):
        codec.decode_block(value[:-1], digest)


def test_a_frame_that_claims_petabytes_is_refused_before_memory_is_asked_for() -> None:
    value, data, _ = STORED["zstd"]
    # RFC 8878: magic, a descriptor for a content size of 8 bytes in a single segment, the size.
    frame = value[5:9] + b"\xe0" + (1 << 50).to_bytes(8, "little") + value[5 + 4 + 3 :]
    with pytest.raises(DamagedRecordError, match="another length"):
        codec.decode_block(value[:5] + frame, codec.block_hash(data))


@pytest.mark.parametrize("name", STORED)
def test_every_cut_is_detected(name: str) -> None:
    value, data, reference = STORED[name]
    for size in range(len(value)):
        with pytest.raises(DamagedRecordError):
            codec.decode_block(value[:size], codec.block_hash(data), reference)


def test_another_valid_block_is_not_that_block() -> None:
    with pytest.raises(DamagedRecordError, match="do not match its hash"):
        codec.decode_block(codec.encode_block(b"one"), codec.block_hash(b"two"))


@pytest.mark.parametrize(("name", "number"), [("delta", 2), ("patch", 3)])
def test_a_delta_without_its_reference_cannot_be_read(name: str, number: int) -> None:
    value, data, _ = STORED[name]
    with pytest.raises(DamagedRecordError, match=f"codec {number}"):
        codec.decode_block(value, codec.block_hash(data))


@pytest.mark.parametrize("name", ["delta", "patch"])
def test_a_delta_with_another_reference_is_detected(name: str) -> None:
    value, data, _ = STORED[name]
    with pytest.raises(DamagedRecordError):
        codec.decode_block(value, codec.block_hash(data), NOISE[::-1])


@given(st.binary(max_size=200))
def test_garbage_never_decodes(value: bytes) -> None:
    with pytest.raises(DamagedRecordError):
        codec.decode_block(value, bytes(32))
