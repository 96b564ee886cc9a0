"""Segments: what `verify` says of damage in them, and what a repair still gets out."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.format import codec, records, version
from cowfs.format.segment import Part, encode_part, encode_segment, is_segment, part_of
from cowfs.service.repair import Repaired, repair
from cowfs.store import packing
from cowfs.store.compaction import compact
from cowfs.store.rewriting import silent
from tests.support.volumes import Rig, errno_of
from tests.verify.sample import Hands, Sample, noise

BITS = version.SEGMENTS | version.CONDENSED


def compact_all(store: Path) -> None:
    """Also what does not shrink goes into a segment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "SMALL", 1 << 20)
        compact(store, silent)


@pytest.fixture(scope="module")
def sound(sound_sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The sample, compacted: all of its blocks are in one segment. Not to be written."""
    sample = sound_sample.copy(tmp_path_factory.mktemp("packed") / "store")
    (sample.store / "lock.mdb").touch()
    compact_all(sample.store)
    with sample.open() as hands:
        assert len(segments(hands)) == 1
    assert sample.verify().problems == sample.verify().notes == []
    return sample


@pytest.fixture
def packed(sound: Sample, tmp_path: Path) -> Sample:
    """One of this test's own."""
    return sound.copy(tmp_path / "store")


def segments(hands: Hands) -> dict[bytes, bytes]:
    return {digest: value for digest, value in hands.rows("block") if is_segment(value)}


def parts(hands: Hands) -> dict[bytes, Part]:
    return {digest: part for digest, value in hands.rows("block") if (part := part_of(value))}


def part_at(hands: Hands, path: str, number: int, epoch: int) -> tuple[bytes, Part]:
    digest = hands.extent(path, number, epoch)[1]
    return digest, parts(hands)[digest]


def mend(sample: Sample) -> Repaired:
    return repair(sample.store, None, dry_run=False, progress=silent)


# -- verify -----------------------------------------------------------------------------------


def part_of_another_place(hands: Hands) -> None:
    digest, part = part_at(hands, "fresh", 0, 4)
    hands.put("block", digest, encode_part(Part(part.segment, part.start ^ 1, part.end ^ 1)))


def part_beyond_the_segment(hands: Hands) -> None:
    digest, part = part_at(hands, "fresh", 0, 4)
    hands.put("block", digest, encode_part(Part(part.segment, 1 << 31, (1 << 31) + 1000)))


def part_of_a_segment_that_is_missing(hands: Hands) -> None:
    digest, part = part_at(hands, "fresh", 0, 4)
    hands.put("block", digest, encode_part(Part(bytes(32), part.start, part.end)))


def part_of_a_part(hands: Hands) -> None:
    digest, part = part_at(hands, "fresh", 0, 4)
    other = hands.extent("src/main", 0, 1)[1]
    hands.put("block", digest, encode_part(Part(other, 0, part.end - part.start)))


def part_that_is_too_long(hands: Hands) -> None:
    digest, part = part_at(hands, "fresh", 0, 4)
    hands.put("block", digest, encode_part(part) + b"x")


def extent_that_names_a_segment(hands: Hands) -> None:
    key, _ = hands.extent("fresh", 0, 4)
    hands.put("extent", key, next(iter(segments(hands))))
    hands.change_inode("fresh", 4, size=1 << 20)


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (part_of_another_place, "block-damaged"),
        (part_beyond_the_segment, "block-reference"),
        (part_of_a_segment_that_is_missing, "block-reference"),
        (part_of_a_part, "block-reference"),
        (part_that_is_too_long, "block-damaged"),
        (extent_that_names_a_segment, "extent-block"),
    ],
)
def test_damage_of_a_part(packed: Sample, damage: Callable[[Hands], None], check: str) -> None:
    with packed.open() as hands:
        damage(hands)
    (problem,) = packed.verify().problems
    assert (problem.check, problem.paths) == (check, ("fresh",))
    assert [packed.names[c] for c in problem.checkpoints] == ["now"]


def damage_segment(hands: Hands, fraction: float) -> bytes:
    """Damage a segment from a place on; its hash."""
    ((digest, value),) = segments(hands).items()
    at = int(len(value) * fraction)
    hands.put("block", digest, value[:at] + bytes(len(value) - at))
    return digest


def test_a_damaged_segment_is_told_once_with_what_is_lost_in_it(packed: Sample) -> None:
    with packed.open() as hands:
        digest = damage_segment(hands, 0.2)
    (problem,) = packed.verify().problems
    assert (problem.check, problem.thing) == ("block-damaged", f"block {digest.hex()}")
    assert {"src/main", "src/alias"} <= set(problem.paths)
    assert {packed.names[c] for c in problem.checkpoints} >= {"one", "two", "lost", "now"}


def test_a_segment_that_is_gone(packed: Sample) -> None:
    with packed.open() as hands:
        ((digest, _),) = segments(hands).items()
        hands.drop("block", digest)
    (problem,) = packed.verify().problems
    assert problem.check == "block-reference"
    assert {"src/main", "src/alias", "fresh", "three", "docs/old"} & set(problem.paths)


def test_a_store_that_does_not_tell_of_its_segments(packed: Sample) -> None:
    with packed.open() as hands:
        record = version.decode_format(hands.get("meta", b"format"))
        uuid = record.uuid
        told = version.without_feature(record, version.SEGMENTS)
        hands.put("meta", b"format", records.encode(told))
    (problem,) = packed.verify().problems
    assert (problem.check, problem.table) == ("format", "meta")
    mend(packed)
    assert packed.verify().problems == []
    with packed.open() as hands:
        record = version.decode_format(hands.get("meta", b"format"))
    assert (record.uuid, record.incompatible) == (uuid, BITS)


def test_a_format_record_that_is_gone_is_made_with_its_bit(packed: Sample) -> None:
    with packed.open() as hands:
        hands.drop("meta", b"format")
    mend(packed)
    with packed.open() as hands:
        record = version.decode_format(hands.get("meta", b"format"))
    assert record.incompatible == BITS
    assert packed.verify().problems == []


def test_a_segment_that_nothing_needs_is_noted(packed: Sample) -> None:
    other = noise(70, 70_000)
    with packed.open() as hands:
        hands.put("block", codec.block_hash(other), encode_segment(other))
    report = packed.verify()
    assert report.problems == []
    assert [note.check for note in report.notes] == ["unreferenced-blocks"]


# -- repair -----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [*range(1, 6), 20, *range(36, 41)])
def test_a_flipped_bit_in_the_record_of_a_part(packed: Sample, at: int) -> None:
    with packed.open() as hands:
        digest, part = part_at(hands, "fresh", 0, 4)
        value = encode_part(part)
        hands.put("block", digest, value[:at] + bytes((value[at] ^ 4,)) + value[at + 1 :])
    assert packed.verify().problems
    assert {action.how for action in mend(packed).actions} == {"restored"}
    assert packed.verify().problems == packed.verify().notes == []


def test_what_can_be_read_of_a_damaged_segment_stands_alone(tmp_path: Path) -> None:
    """zstd compresses pieces of 128 KiB: what lies before the damaged one is whole."""
    rig = Rig(tmp_path / "store", None)
    for number in range(10):
        rig.create(b"f%d" % number, noise(number, 50_000))
    rig.finish()
    store = Sample(tmp_path / "store", tmp_path, {}, {})
    compact_all(store.store)
    with store.open() as hands:
        damage_segment(hands, 0.7)
    (problem,) = store.verify().problems
    lost = set(problem.paths)
    assert 3 <= len(lost) <= 7
    done = mend(store)
    assert store.verify().problems == []
    assert {action.how for action in done.actions} == {"restored", "rebuilt", "marked"}
    told = {path for action in done.actions if action.how == "marked" for path in action.paths}
    assert told == lost
    with store.open() as hands:
        assert not segments(hands)
        assert len(hands.rows("block")) == 10 - len(lost)
    rig = Rig(tmp_path / "store", None)
    try:
        for number in range(10):
            path = b"f%d" % number
            if path.decode() in lost:
                assert errno_of(rig.read, path) == errno.EIO
            else:
                assert rig.read(path) == noise(number, 50_000)
    finally:
        rig.finish(check=False)


@pytest.mark.parametrize("at", range(codec.HEADER_SIZE))
def test_a_segment_whose_header_is_damaged(packed: Sample, at: int) -> None:
    with packed.open() as hands:
        ((digest, value),) = segments(hands).items()
        hands.put("block", digest, value[:at] + bytes((value[at] ^ 1,)) + value[at + 1 :])
    assert packed.verify().problems
    assert {action.how for action in mend(packed).actions} == {"restored"}
    assert packed.verify().problems == packed.verify().notes == []


def test_the_first_page_of_a_segment(packed: Sample) -> None:
    """Its head is damaged: LMDB cannot find it, but its hash tells what it is."""
    with packed.open() as hands:
        ((_, value),) = segments(hands).items()
        before = dict(hands.rows("block"))
    path = packed.store / "data.mdb"
    data = bytearray(path.read_bytes())
    at = data.index(value) & -4096
    data[at : at + 8] = b"\xff" * 8
    path.write_bytes(data)
    assert "structure" in {problem.check for problem in packed.verify().problems}
    mend(packed)
    assert packed.verify().problems == packed.verify().notes == []
    with packed.open() as hands:
        assert dict(hands.rows("block")) == before


def test_records_of_a_damaged_leaf_are_found_again(packed: Sample) -> None:
    """Parts and segments on a leaf whose page lost its number."""
    with packed.open() as hands:
        digest, part = part_at(hands, "fresh", 0, 4)
        before = dict(hands.rows("block"))
    path = packed.store / "data.mdb"
    data = bytearray(path.read_bytes())
    at = data.index(digest + encode_part(part)) & -4096
    data[at : at + 8] = b"\xff" * 8
    path.write_bytes(data)
    mend(packed)
    assert packed.verify().problems == []
    with packed.open() as hands:
        assert dict(hands.rows("block")) == before
