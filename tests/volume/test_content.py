"""Content of files: reading, writing, truncating, with and without a base file behind it."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.format import codec
from cowfs.format.records import Counts
from cowfs.types import BLOCK_SIZE
from cowfs.volume import attributes, data, sealing
from cowfs.volume.inode import Inode
from tests.support.volumes import Rig, errno_of

B = BLOCK_SIZE
EDGES = [0, 1, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1, 3 * B]


def pattern(size: int, seed: int = 1) -> bytes:
    """Bytes that are different at every place."""
    return random.Random(seed).randbytes(size)


# How old the content is at which a test looks: fresh in memory, in the middle of a commit, in the
# store, in the store of a checkpoint before.
def in_memory(rig: Rig) -> None:
    return


def in_flight(rig: Rig) -> None:
    rig.volume.quiesce()


def committed(rig: Rig) -> None:
    rig.volume.sync()
    rig.evict()


def in_a_checkpoint(rig: Rig) -> None:
    rig.checkpoint()
    rig.evict()


def in_an_earlier_life(rig: Rig) -> None:
    rig.reopen()


AGES = [in_memory, in_flight, committed, in_a_checkpoint, in_an_earlier_life]
aged = pytest.mark.parametrize("age", AGES, ids=lambda age: age.__name__)
Age = Callable[[Rig], None]


# What a file may be made of: written here, from the base directory, from a sealed base.
def written(rig: Rig, size: int) -> bytes:
    rig.create(b"f", pattern(size))
    return pattern(size)


def base_file(rig: Rig, size: int) -> bytes:
    assert rig.base is not None
    (rig.base / "f").write_bytes(pattern(size))
    return pattern(size)


def sealed_base_file(rig: Rig, size: int) -> bytes:
    content = base_file(rig, size)
    sealing.seal(rig.view, rig.at(b"f").content)
    return content


SOURCES = [written, base_file, sealed_base_file]
sourced = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
Source = Callable[[Rig, int], bytes]


def check(rig: Rig, path: bytes, expected: bytes) -> None:
    """The file has exactly these bytes, however it is read, now and in the next life."""
    for _ in range(2):
        assert rig.at(path).size == len(expected)
        assert rig.read(path) == expected
        inode = rig.at(path)
        for offset in (0, 1, B - 3, B, 2 * B - 1, len(expected) - 1, len(expected), 4 * B):
            if offset >= 0:
                assert data.read(rig.view, inode, offset, 7) == expected[offset : offset + 7]
            pieces = data.read_pieces(rig.view, inode, max(offset, 0), 2 * B)
            assert b"".join(pieces) == expected[max(offset, 0) :][: 2 * B]
        rig.volume.sync()
        rig.evict()


def apply_write(content: bytearray, offset: int, piece: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(piece)] = piece


@aged
@sourced
@pytest.mark.parametrize("size", [1, 10, B, B + 1])
def test_one_write_at_every_edge(volume: Rig, source: Source, age: Age, size: int) -> None:
    expected = bytearray(source(volume, 2 * B - 7))
    age(volume)
    for edge in EDGES:
        piece = pattern(size, seed=edge)
        volume.write(b"f", piece, edge)
        apply_write(expected, edge, piece)
        age(volume)
    check(volume, b"f", bytes(expected))


@aged
@sourced
@pytest.mark.parametrize("down", [0, 1, 100, B - 1, B, B + 1, 2 * B])
def test_what_is_cut_off_never_comes_back(volume: Rig, source: Source, age: Age, down: int) -> None:
    content = source(volume, 2 * B + 500)
    age(volume)
    volume.truncate(b"f", down)
    age(volume)
    volume.truncate(b"f", 3 * B)
    expected = bytearray(content[:down] + bytes(3 * B - down))
    assert volume.read(b"f") == bytes(expected)
    age(volume)
    volume.write(b"f", b"x", 2 * B + 600)
    apply_write(expected, 2 * B + 600, b"x")
    check(volume, b"f", bytes(expected))


@aged
@sourced
def test_growing_makes_zeros(volume: Rig, source: Source, age: Age) -> None:
    content = source(volume, 100)
    age(volume)
    for size in (101, B, B + 1, 3 * B + 5):
        volume.truncate(b"f", size)
        assert volume.read(b"f") == content + bytes(size - 100)
    check(volume, b"f", content + bytes(3 * B + 5 - 100))


@sourced
def test_the_old_state_keeps_what_a_truncation_cut_off(volume: Rig, source: Source) -> None:
    content = source(volume, 2 * B + 500)
    volume.tree()
    before = volume.checkpoint()
    volume.truncate(b"f", B + 10)
    volume.truncate(b"f", 2 * B + 500)
    volume.write(b"f", b"new", 0)
    cut = volume.checkpoint()
    volume.truncate(b"f", 0)
    volume.restore(before)
    check(volume, b"f", content)
    volume.restore(cut)
    check(volume, b"f", b"new" + content[3 : B + 10] + bytes(B + 490))


@sourced
def test_random_edits(volume: Rig, source: Source) -> None:
    rng = random.Random(7)
    expected = bytearray(source(volume, 3 * B + 17))
    for step in range(300):
        offset = rng.choice(EDGES) + rng.randrange(-3, 4)
        offset = max(0, offset)
        if rng.random() < 0.25:
            volume.truncate(b"f", offset)
            del expected[offset:]
            expected.extend(bytes(offset - len(expected)))
        else:
            piece = pattern(rng.choice([1, 3, 1000, B - 1, B, B + 2]), seed=step)
            volume.write(b"f", piece, offset)
            apply_write(expected, offset, piece)
        rng.choice(AGES)(volume)
        if step % 10 == 0:
            assert volume.read(b"f") == bytes(expected), step
    check(volume, b"f", bytes(expected))


def test_sealed_content_needs_no_base(volume: Rig, base: Path) -> None:
    content = sealed_base_file(volume, 2 * B + 5)
    volume.volume.sync()
    (base / "f").unlink()
    check(volume, b"f", content)
    volume.write(b"f", b"x", B)
    check(volume, b"f", content[:B] + b"x" + content[B + 1 :])


def test_sparse_sizes_past_4_gib(volume: Rig) -> None:
    inode = volume.create(b"f")
    far = 5 << 32
    data.write(volume.view, inode, far, b"far away")
    assert inode.size == far + 8
    attributes.set_attributes(volume.view, inode, size=1 << 45)
    volume.reopen()
    inode = volume.at(b"f")
    assert inode.size == 1 << 45
    assert data.read(volume.view, inode, far - 4, 16) == bytes(4) + b"far away" + bytes(4)
    assert data.read(volume.view, inode, (1 << 45) - 3, 100) == bytes(3)
    assert data.read(volume.view, inode, 1 << 45, 100) == b""
    attributes.set_attributes(volume.view, inode, size=far + 3)
    attributes.set_attributes(volume.view, inode, size=far + 20)
    assert data.read(volume.view, inode, far, 20) == b"far" + bytes(17)
    assert volume.volume.store.bytes_used() < 10 << 20


def test_the_largest_file(volume: Rig) -> None:
    inode, top = volume.create(b"f"), (1 << 63) - 1
    assert errno_of(data.write, volume.view, inode, top - 1, b"ab") == errno.EFBIG
    assert errno_of(data.truncate, volume.view, inode, top + 1) == errno.EFBIG
    assert errno_of(data.truncate, volume.view, inode, -1) == errno.EINVAL
    assert inode.size == 0
    data.truncate(volume.view, inode, top)
    data.write(volume.view, inode, top - 2, b"ab")
    assert data.read(volume.view, inode, top - 4, 100) == b"\0\0ab"
    volume.truncate(b"f", 0)


def test_reads_at_and_past_the_end(volume: Rig) -> None:
    inode = volume.create(b"f", b"abc")
    view = volume.view
    assert data.read(view, inode, 0, 0) == b""
    assert data.read(view, inode, 2, 10) == b"c"
    assert data.read(view, inode, 3, 10) == b""
    assert data.read(view, inode, 1 << 62, 10) == b""


def test_zeros_take_no_room(volume: Rig) -> None:
    volume.create(b"zeros", bytes(4 * B))
    volume.create(b"sparse", b"x")
    volume.truncate(b"sparse", 4 * B)
    assert volume.record_counts()["block"] == 1
    check(volume, b"zeros", bytes(4 * B))
    check(volume, b"sparse", b"x" + bytes(4 * B - 1))


def test_equal_blocks_are_stored_once(volume: Rig) -> None:
    for name in (b"a", b"b", b"c"):
        volume.create(name, pattern(B) + pattern(B))
    assert volume.record_counts()["block"] == 1
    volume.write(b"b", b"!", 10)
    expected = bytearray(pattern(B) * 2)
    expected[10:11] = b"!"
    check(volume, b"a", pattern(B) * 2)
    check(volume, b"b", bytes(expected))


def test_the_base_is_never_written(volume: Rig) -> None:
    assert volume.base is not None
    path = volume.base / "f"
    path.write_bytes(pattern(3 * B))
    before = path.stat()
    volume.write(b"f", b"new", B - 1)
    volume.truncate(b"f", 2 * B)
    volume.checkpoint()
    volume.unlink(b"f")
    volume.checkpoint()
    assert path.read_bytes() == pattern(3 * B)
    after = path.stat()
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


def test_reading_records_nothing(volume: Rig) -> None:
    assert volume.base is not None
    (volume.base / "f").write_bytes(pattern(3 * B))
    volume.tree()
    before = volume.record_counts()
    volume.evict()
    assert volume.read(b"f") == pattern(3 * B)
    assert volume.view.counts() == Counts(0, 0, 0)
    assert volume.record_counts() == before


def test_a_group_in_flight_keeps_its_bytes(volume: Rig) -> None:
    """A write to a block that is being committed must not change what is committed."""
    inode = volume.create(b"f", pattern(100))
    with_first = volume.volume.quiesce()
    assert with_first is not None
    rows = [bytes(block[2] or b"") for block in with_first.blocks]
    data.write(volume.view, inode, 10, b"changed")
    data.truncate(volume.view, inode, 50)
    assert [bytes(block[2] or b"") for block in with_first.blocks] == rows == [pattern(100)]
    expected = bytearray(pattern(100)[:50])
    expected[10:17] = b"changed"
    check(volume, b"f", bytes(expected))


def test_damage_is_an_error_of_that_file_only(volume: Rig) -> None:
    volume.create(b"good", pattern(B, 1))
    volume.create(b"bad", pattern(B, 2))
    volume.volume.sync()
    view = volume.view
    digest, _ = view.snapshot.block_source(volume.at(b"bad").content, 0, 0)
    assert digest
    with volume.volume.store.begin(write=True) as txn:
        table = volume.volume.store.tables["block"]
        value = bytearray(txn.get(digest, db=table) or b"")
        value[100] ^= 1
        txn.put(digest, bytes(value), db=table)
    volume.check = False
    volume.reopen()

    def read(inode: Inode) -> bytes:
        return data.read(volume.view, inode, 0, B)

    assert errno_of(read, volume.at(b"bad")) == errno.EIO
    assert read(volume.at(b"good")) == pattern(B, 1)
    assert [kind for kind, _ in volume.problems()] == ["damaged"]
    assert errno_of(data.write, volume.view, volume.at(b"bad"), 5, b"x") == errno.EIO
    volume.save(b"bad", b"rescued")
    assert volume.read(b"bad") == b"rescued"


@pytest.mark.parametrize("offset", [0, 100, B - 10])
def test_the_buffer_of_a_write_may_be_used_again(volume: Rig, offset: int) -> None:
    inode = volume.create(b"f", pattern(3 * B, 1))
    buffer = bytearray(pattern(2 * B, 2))
    assert data.write(volume.view, inode, offset, memoryview(buffer)) == 2 * B
    buffer[:] = bytes(2 * B)
    expected = bytearray(pattern(3 * B, 1))
    expected[offset : offset + 2 * B] = pattern(2 * B, 2)
    check(volume, b"f", bytes(expected))


def test_a_block_that_the_newest_commit_has_no_more(volume: Rig) -> None:
    """Until the volume looks at the newest commit, it shows what it saw before."""
    volume.create(b"f", pattern(B))
    volume.checkpoint()
    volume.evict()
    inode = volume.at(b"f")
    digest, _ = volume.view.snapshot.block_source(inode.content, 0, 0)
    assert digest
    store = volume.volume.store
    with store.begin(write=True) as txn:
        assert txn.delete(digest, db=store.tables["block"])
    assert data.read(volume.view, inode, 0, B) == pattern(B)
    with store.begin(write=True) as txn:
        txn.put(digest, codec.encode_block(pattern(B)), db=store.tables["block"])


def test_a_base_file_that_cannot_be_read_any_more(volume: Rig, base: Path) -> None:
    (base / "f").write_bytes(pattern(2 * B))
    (base / "g").write_bytes(pattern(10))
    volume.tree()
    volume.volume.sync()
    volume.evict()
    assert volume.volume.base is not None
    volume.volume.base.forget()
    (base / "f").unlink()
    assert errno_of(data.read, volume.view, volume.at(b"f"), 0, 10) == errno.EIO
    assert volume.read(b"g") == pattern(10)
    assert ("lost", "f") in volume.problems()
    volume.save(b"f", b"new")
    assert volume.read(b"f") == b"new"
