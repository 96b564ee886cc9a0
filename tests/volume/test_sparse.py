"""Sparse files in a volume: fallocate(2), and where lseek(2) finds data and holes."""

from __future__ import annotations

import errno
import os

import pytest

from cowfs.types import BLOCK_SIZE
from cowfs.volume import attributes, data, namespace, sealing, sparse
from cowfs.volume.data import MAX_SIZE
from cowfs.volume.posix import PosixError
from cowfs.volume.sparse import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from tests.support.volumes import Rig, errno_of
from tests.volume.test_content import Age, Source, aged, base_file, pattern, sourced

B = BLOCK_SIZE
PUNCH = PUNCH_HOLE | KEEP_SIZE
SIZE = 4 * B + 100
RANGES = [(B, 2 * B), (5, 10), (3, 2 * B), (2 * B, 9 * B), (0, SIZE)]


def cleared(content: bytes, offset: int, length: int) -> bytes:
    """A content with zeros in a part of it."""
    stop = min(offset + length, len(content))
    return content[:offset] + bytes(max(stop - offset, 0)) + content[max(stop, offset) :]


@aged
@sourced
@pytest.mark.parametrize(("offset", "length"), RANGES)
def test_a_hole_reads_as_zeros(
    volume: Rig, source: Source, age: Age, offset: int, length: int
) -> None:
    """fallocate(2): the size stays, what is in the range reads as zeros; whole blocks are holes."""
    content = source(volume, SIZE)
    before = volume.checkpoint()
    age(volume)
    volume.allocate(b"f", PUNCH, offset, length)
    for _ in range(2):
        assert volume.read(b"f") == cleared(content, offset, length)
        holes = {n for start, end in volume.holes(b"f") for n in range(start // B, -(-end // B))}
        inner = range(-(-offset // B), min(offset + length, SIZE) // B)
        assert holes.issuperset(inner)
        volume.volume.sync()
        volume.evict()
    volume.restore(before)
    assert volume.read(b"f") == content
    volume.undo()
    assert volume.read(b"f") == cleared(content, offset, length)


def test_whole_blocks_are_neither_read_nor_written(
    volume: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_file(volume, SIZE)
    volume.at(b"f")
    blocks = volume.record_counts()["block"]

    def refuse(*arguments: object) -> bytes:
        raise AssertionError("a block of the base file is read")

    monkeypatch.setattr(data, "_base_block", refuse)
    volume.allocate(b"f", PUNCH, B, 2 * B)
    volume.allocate(b"f", ZERO_RANGE, 4 * B, 100)
    assert volume.record_counts()["block"] == blocks


def test_what_was_punched_out_takes_no_room(volume: Rig) -> None:
    volume.create(b"f", pattern(3 * B))
    assert volume.record_counts()["block"] == 3
    volume.allocate(b"f", PUNCH, 0, 2 * B)
    assert volume.record_counts()["block"] == 1


def test_a_hole_in_the_base_part_survives_sealing(volume: Rig) -> None:
    content = base_file(volume, SIZE)
    before = volume.checkpoint()
    volume.allocate(b"f", PUNCH, B, B)
    sealing.seal(volume.view, volume.at(b"f").content)
    volume.volume.sync()
    volume.evict()
    assert volume.read(b"f") == cleared(content, B, B)
    volume.restore_paths(before, [b"f"])
    assert volume.read(b"f") == content


def test_punched_to_its_end_nothing_comes_from_the_base(volume: Rig) -> None:
    """However long that is: only the record says so."""
    base_file(volume, SIZE)
    volume.at(b"f")
    extents = volume.record_counts()["extent"]
    volume.allocate(b"f", PUNCH, B, SIZE)
    assert volume.record_counts()["extent"] == extents
    assert volume.at(b"f").base_size == B
    assert volume.holes(b"f") == [(B, SIZE)]


def test_a_hole_in_a_huge_file_costs_what_is_there(volume: Rig) -> None:
    inode = volume.create(b"f")
    volume.truncate(b"f", MAX_SIZE)
    volume.write(b"f", b"x", 1 << 40)
    assert volume.holes(b"f") == [(0, 1 << 40), ((1 << 40) + B, MAX_SIZE)]
    volume.allocate(b"f", PUNCH, 5, MAX_SIZE - 10)
    assert set(inode.blocks) == {(1 << 40) // B}
    assert volume.holes(b"f") == [(0, MAX_SIZE)]


@pytest.mark.parametrize(
    ("mode", "size"),
    [(0, 3 * B), (KEEP_SIZE, 10), (ZERO_RANGE, 3 * B), (ZERO_RANGE | KEEP_SIZE, 10), (PUNCH, 10)],
)
def test_who_makes_a_file_longer(volume: Rig, mode: int, size: int) -> None:
    volume.create(b"f", b"x" * 10)
    volume.allocate(b"f", mode, 5, 3 * B - 5)
    expected = b"x" * (10 if mode in (0, KEEP_SIZE) else 5)
    assert volume.read(b"f") == expected.ljust(size, b"\0")
    volume.volume.sync()
    volume.evict()
    assert volume.read(b"f") == expected.ljust(size, b"\0")


@pytest.mark.parametrize(
    "mode",
    [PUNCH_HOLE, PUNCH | ZERO_RANGE, 0x08, 0x20, 0x40, 0x08 | KEEP_SIZE],
)
def test_other_modes(volume: Rig, mode: int) -> None:
    volume.create(b"f", b"x")
    assert errno_of(volume.allocate, b"f", mode, 0, B) == errno.EOPNOTSUPP
    assert volume.read(b"f") == b"x"


def test_too_long(volume: Rig) -> None:
    volume.create(b"f", b"x")
    assert errno_of(volume.allocate, b"f", 0, MAX_SIZE - 5, 10) == errno.EFBIG
    assert volume.at(b"f").size == 1


def test_base_content_that_is_lost_can_be_punched_out(volume: Rig) -> None:
    """Of a block of which a part stays that is EIO, and nothing was changed."""
    base_file(volume, SIZE)
    volume.at(b"f")
    assert volume.base is not None
    (volume.base / "f").write_bytes(b"other")
    assert errno_of(volume.allocate, b"f", PUNCH, 10, 2 * B) == errno.EIO
    assert volume.at(b"f").base_size == SIZE
    assert volume.holes(b"f") == []  # who reads it hears why
    volume.allocate(b"f", PUNCH, 0, 2 * B)
    assert data.read(volume.view, volume.at(b"f"), 0, 2 * B) == bytes(2 * B)
    assert errno_of(data.read, volume.view, volume.at(b"f"), 2 * B, 1) == errno.EIO


def test_a_file_without_a_name(volume: Rig) -> None:
    volume.create(b"f", pattern(2 * B))
    before = volume.checkpoint()
    handle = volume.open(b"f")
    volume.unlink(b"f")
    handle.allocate(PUNCH, 0, B)
    handle.allocate(0, 2 * B, B)
    expected = bytes(B) + pattern(2 * B)[B:] + bytes(B)
    assert handle.read() == expected
    volume.volume.sync()
    assert handle.read() == expected
    volume.restore(before)  # has the name again, and what it was
    assert handle.read() == pattern(2 * B)
    handle.close()


def test_a_file_that_a_restore_took_the_name_of(volume: Rig) -> None:
    before = volume.checkpoint()
    volume.create(b"f", pattern(3 * B))
    handle = volume.open(b"f")
    rescue = volume.restore(before).rescue
    handle.allocate(PUNCH, B, B)
    assert handle.read() == cleared(pattern(3 * B), B, B)
    volume.volume.sync()
    assert handle.read() == cleared(pattern(3 * B), B, B)
    handle.close()
    volume.restore(rescue)
    assert volume.read(b"f") == pattern(3 * B)


# -- lseek --------------------------------------------------------------------------------------


def seek(rig: Rig, path: bytes, offset: int, whence: int) -> int:
    inode = rig.at(path)
    return sparse.seek(inode, offset, whence, sparse.hole(rig.view, inode, offset))


@aged
def test_data_and_holes(volume: Rig, age: Age) -> None:
    """lseek(2): SEEK_DATA and SEEK_HOLE stay where they are right; the end is a hole."""
    volume.create(b"f", b"x" * 10)
    volume.write(b"f", b"y" * B, 3 * B)
    volume.truncate(b"f", 6 * B + 1)
    age(volume)
    cases = [
        (0, 0, B),
        (5, 5, B),
        (B, 3 * B, B),
        (2 * B + 7, 3 * B, 2 * B + 7),
        (3 * B, 3 * B, 4 * B),
        (4 * B - 1, 4 * B - 1, 4 * B),
    ]
    for offset, found, hole in cases:
        assert seek(volume, b"f", offset, os.SEEK_DATA) == found
        assert seek(volume, b"f", offset, os.SEEK_HOLE) == hole
    assert seek(volume, b"f", 5 * B, os.SEEK_HOLE) == 5 * B
    for offset, whence in [(4 * B, os.SEEK_DATA), (6 * B + 1, os.SEEK_HOLE), (1 << 62, 3)]:
        assert errno_of(seek, volume, b"f", offset, whence) == errno.ENXIO


def test_the_holes_of_a_base_file(volume: Rig) -> None:
    assert volume.base is not None
    with open(volume.base / "f", "wb") as file:
        file.seek(2 * B)
        file.write(b"x" * B)
        file.truncate(5 * B + 9)
    expected = [(0, 2 * B), (3 * B, 5 * B + 9)]
    assert volume.holes(b"f") == expected
    sealing.seal(volume.view, volume.at(b"f").content)
    assert volume.holes(b"f") == expected  # as long as the store does not have it
    volume.volume.sync()
    assert volume.holes(b"f") == expected
    volume.truncate(b"f", 2 * B + 1)
    volume.truncate(b"f", 5 * B)
    assert volume.holes(b"f") == [(0, 2 * B), (3 * B, 5 * B)]


def test_what_a_truncation_cut_off_is_a_hole(volume: Rig) -> None:
    base_file(volume, SIZE)
    volume.truncate(b"f", B)
    volume.truncate(b"f", SIZE)
    assert volume.holes(b"f") == [(B, SIZE)]


def test_an_unreadable_file_has_no_holes(volume: Rig) -> None:
    inode = volume.create(b"f", b"x")
    inode.damaged = True
    with pytest.raises(PosixError, match=os.strerror(errno.EIO)):
        sparse.hole(volume.view, inode, 0)
    inode.damaged = False


# -- files without a name -----------------------------------------------------------------------


def name(rig: Rig, ino: int, path: bytes) -> None:
    """linkat(2) of an open file."""
    namespace.link(rig.view, ino, *rig.place(path))


def test_the_first_name_of_a_file(volume: Rig) -> None:
    handle = volume.open_unnamed()
    handle.write(0, pattern(B + 5))
    inode = handle.inode
    assert (inode.nlink, volume.ls()) == (0, [])
    name(volume, inode.ino, b"f")
    assert (inode.nlink, volume.ls()) == (1, [b"f"])
    handle.write(B, b"more!")
    handle.close()
    record = volume.checkpoint()
    assert record.counts.created == 1
    volume.reopen()
    assert volume.read(b"f") == pattern(B) + b"more!"


@aged
def test_a_name_after_checkpoints(volume: Rig, age: Age) -> None:
    """The checkpoints before do not have the file; the one after has all of it."""
    handle = volume.open_unnamed()
    handle.write(0, pattern(2 * B))
    first = volume.checkpoint()
    handle.write(B, b"second")
    if age.__name__ != "in_an_earlier_life":
        age(volume)
    name(volume, handle.inode.ino, b"f")
    expected = pattern(B) + b"second" + pattern(2 * B)[B + 6 :]
    assert volume.read(b"f") == expected
    second = volume.checkpoint()
    handle.close()
    volume.restore(first)
    assert volume.ls() == []
    volume.restore(second)
    volume.reopen()
    assert volume.read(b"f") == expected


def test_a_name_that_goes_at_once(volume: Rig) -> None:
    """Nothing names what was written, also in earlier epochs; the blocks are for a collection."""
    volume.checkpoint()
    before = volume.record_counts()
    handle = volume.open_unnamed()
    handle.write(0, pattern(2 * B))
    volume.checkpoint()
    name(volume, handle.inode.ino, b"f")
    handle.write(0, b"x")
    volume.volume.sync()
    volume.unlink(b"f")
    handle.close()
    after = volume.record_counts()
    for table in ("dirent", "link", "extent", "orphan"):
        assert after[table] == before[table], table


@pytest.mark.parametrize("crash", [False, True])
def test_what_has_no_name_is_gone_with_its_holder(volume: Rig, crash: bool) -> None:
    before = volume.record_counts()
    handle = volume.open_unnamed()
    handle.write(0, pattern(2 * B))
    volume.volume.sync()
    if crash:
        volume.crash()
        volume.start()
    else:
        handle.close()
    after = volume.record_counts()
    assert (after["inode"], after["extent"], after["orphan"]) == (
        before["inode"],
        before["extent"],
        before["orphan"],
    )


def test_a_restore_takes_the_chance_of_a_name(volume: Rig) -> None:
    """Contract 3: what the restored state does not have never enters its tree."""
    before = volume.checkpoint()
    handle = volume.open_unnamed()
    handle.write(0, b"made before")
    volume.restore(before)
    assert errno_of(name, volume, handle.inode.ino, b"f") == errno.ENOENT
    assert handle.read() == b"made before"
    handle.close()


def test_a_file_that_lost_its_name_gets_none(volume: Rig) -> None:
    """linkat(2): ENOENT, but for files that were made without."""
    volume.create(b"f", b"x")
    handle = volume.open(b"f")
    volume.unlink(b"f")
    assert errno_of(name, volume, handle.inode.ino, b"g") == errno.ENOENT
    handle.close()
    again = volume.open_unnamed()
    name(volume, again.inode.ino, b"f")
    volume.unlink(b"f")
    assert errno_of(name, volume, again.inode.ino, b"g") == errno.ENOENT
    again.close()


def test_attributes_that_were_set_without_a_name(volume: Rig) -> None:
    volume.mkdir(b"d", 0o2755, gid=77)
    handle = volume.open_unnamed(b"d")
    assert handle.inode.gid == 77
    attributes.set_xattr(volume.view, handle.inode, b"user.a", b"1")
    volume.checkpoint()
    name(volume, handle.inode.ino, b"d/f")
    handle.close()
    volume.reopen()
    assert volume.xattrs(b"d/f") == {b"user.a": b"1"}
