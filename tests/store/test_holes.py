"""Room of free pages given back while a store is in use: nothing that anybody can see changes."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import mmap
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cowfs
from cowfs.errors import CompactFailedError, CompactHolesError
from cowfs.service.collecting import Pace
from cowfs.service.selectors import all_checkpoints
from cowfs.service.shrinking import Shrunk, shrink
from cowfs.store import holes, steps
from cowfs.store.env import TABLES, Store, open_store
from cowfs.store.freelist import FreeList, FreeListError
from cowfs.store.pages import META, PageCheck, read_metas
from cowfs.store.salvage import best_harvest
from cowfs.store.snapshot import Reader
from tests.collecting.looking import check_verified, collect_garbage, forget
from tests.crash.recorder import recording
from tests.support.volumes import START, Rig

PAGE = mmap.PAGESIZE
MIB = 1 << 20
_ROOT = Path(cowfs.__file__).resolve().parent.parent
Rows = dict[tuple[str, bytes], bytes]


def give_back(rig: Rig, spared: int = 0) -> Shrunk:
    return shrink(rig.engine, Pace(), lambda **_: None, spared=spared)


def dump(reader: Reader) -> Rows:
    """Every record of a snapshot."""
    return {
        (table, key): value for table in reader.store.tables for key, value in reader.scan(table)
    }


def digest(rows: Rows) -> str:
    found = hashlib.sha256()
    for table, key in sorted(rows):
        found.update(b"%b %b %b" % (table.encode(), key, rows[table, key]))
    return found.hexdigest()


def change(rig: Rig, rng: random.Random) -> None:
    """Some changes, and a commit or several."""
    for _ in range(rng.randrange(1, 5)):
        name = b"f%d" % rng.randrange(10)
        what = rng.randrange(10)
        if what < 5:
            rig.save(name, rng.randbytes(rng.choice((10, 900, 3000, 9000, 70_000, 150_000))))
        elif what < 8 and rig.exists(name):
            rig.unlink(name)
        elif what == 8:
            rig.checkpoint()
        else:
            known = [r.id for r in all_checkpoints(rig.volume.reader) if r.id != START]
            forget(rig, known[: len(known) // 2])
            collect_garbage(rig)
        if rng.random() < 0.5:
            rig.volume.sync()
    rig.volume.sync()


def make_garbage(rig: Rig, megabytes: int = 4) -> None:
    """Free pages: what a checkpoint showed that was removed."""
    for number in range(megabytes):
        rig.create(b"passing%d" % number, random.Random(number).randbytes(MIB))
    record = rig.checkpoint()
    for number in range(megabytes):
        rig.unlink(b"passing%d" % number)
    rig.create(b"stays", b"stays" * 1000)
    rig.checkpoint()
    forget(rig, [record.id])
    collect_garbage(rig)
    rig.create(b"after")
    rig.volume.sync()


class Elsewhere:
    """Readers in another process: each tells the digest of what it sees."""

    _PROGRAM = """
import sys
from pathlib import Path
from cowfs.store.env import open_store
from cowfs.store.snapshot import Reader
from tests.store.test_holes import digest, dump
store, readers = open_store(Path(sys.argv[1]), writable=False), []
for line in sys.stdin:
    if line == "open\\n":
        readers.append(Reader(store))
    elif line == "close\\n":
        readers.pop(0).close()
    print(*(digest(dump(reader)) for reader in readers), flush=True)
"""

    def __init__(self, store: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._PROGRAM, str(store)],
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, word: str) -> list[str]:
        """What the readers see after a command; nothing when the process ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return []
        return self.process.stdout.readline().split()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def elsewhere(volume: Rig) -> Iterator[Elsewhere]:
    other = Elsewhere(volume.store)
    yield other
    other.end()


def sound(path: Path) -> bool:
    """Whether LMDB's structure is whole, from the newest meta page."""
    return list(PageCheck(path).run()) == []


# -- what is given back -----------------------------------------------------------------------


def test_the_file_takes_less_and_says_the_same(volume: Rig) -> None:
    make_garbage(volume)
    data = volume.store / "data.mdb"
    size, before = data.stat().st_size, volume.volume.store.bytes_used()
    with Reader(volume.volume.store) as reader:
        rows = dump(reader)
    done = give_back(volume)
    assert done.complete
    assert done.before == before
    assert done.after == data.stat().st_blocks * 512 < before - 3 * MIB
    assert data.stat().st_size == size, "a hole makes no file shorter"
    with Reader(volume.volume.store) as reader:
        assert dump(reader) == rows
    assert sound(data)
    assert give_back(volume).after == done.after
    volume.create(b"again", random.Random(9).randbytes(3 * MIB))
    volume.volume.sync()
    assert data.stat().st_size == size, "holes are used again"
    assert volume.read(b"again") == random.Random(9).randbytes(3 * MIB)


def test_the_first_pages_are_spared(volume: Rig) -> None:
    make_garbage(volume)
    give_back(volume, spared=2 * MIB)
    volume.volume.writer.measure()
    assert 2 * MIB <= volume.volume.writer.room.inside < 3.5 * MIB
    used = volume.volume.store.bytes_used()
    volume.create(b"again", random.Random(9).randbytes(MIB))
    volume.volume.sync()
    assert volume.volume.store.bytes_used() < used + MIB // 4, "they are used first"


def test_holes_are_no_room_inside(volume: Rig) -> None:
    make_garbage(volume)
    writer = volume.volume.writer
    writer.measure()
    before = writer.room
    give_back(volume)
    after = writer.room
    assert before.inside > 3 * MIB
    assert after.inside < MIB
    assert after.used == before.used
    assert after.left <= volume.volume.store.free_bytes() + after.inside


def test_the_quota_counts_what_is_in_use(volume: Rig) -> None:
    make_garbage(volume)
    writer = volume.volume.writer
    writer.set_quota(writer.room.used + 3 * MIB)
    for number in range(3):
        give_back(volume)
        assert 2 * MIB < writer.room.left <= 3 * MIB
        volume.create(b"n%d" % number, random.Random(number).randbytes(2 * MIB))
        volume.volume.sync()
        assert writer.room.left < MIB
        volume.unlink(b"n%d" % number)
        volume.volume.sync()
        volume.create(b"m%d" % number)
        volume.volume.sync()


def test_what_a_failed_commit_left_behind_the_last_page(volume: Rig) -> None:
    """LMDB never looks there."""
    make_garbage(volume)
    give_back(volume)
    data = volume.store / "data.mdb"
    used, end = data.stat().st_blocks, data.stat().st_size
    with open(data, "r+b") as file:
        file.seek(end)
        file.write(b"x" * MIB)
    assert data.stat().st_blocks >= used + MIB // 512
    give_back(volume)
    assert data.stat().st_blocks <= used + 64
    volume.create(b"again", random.Random(9).randbytes(5 * MIB))
    volume.volume.sync()
    assert volume.read(b"again") == random.Random(9).randbytes(5 * MIB)


# -- what nobody notices ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_no_reader_sees_anything_else(volume: Rig, elsewhere: Elsewhere, seed: int) -> None:
    """Readers of old commits, here and in another process, see every record as it was."""
    rng = random.Random(seed)
    here: list[tuple[Reader, Rows]] = []
    there: list[str] = []
    for _ in range(40):
        change(volume, rng)
        if rng.random() < 0.3:
            reader = Reader(volume.volume.store)
            here.append((reader, dump(reader)))
        if rng.random() < 0.3:
            with Reader(volume.volume.store) as reader:
                there.append(digest(dump(reader)))
            assert elsewhere.ask("open")[-1] == there[-1]
        if len(here) > 3:
            here.pop(rng.randrange(len(here)))[0].close()
        if len(there) > 2:
            there.pop(0)
            elsewhere.ask("close")
        with Reader(volume.volume.store) as reader:
            now = dump(reader)
        give_back(volume, spared=rng.choice((0, 0, 100_000)))
        with Reader(volume.volume.store) as reader:
            assert dump(reader) == now
        for reader, rows in here:
            assert dump(reader) == rows
        assert elsewhere.ask("look") == there
        assert sound(volume.store / "data.mdb")
    check_verified(volume)
    for reader, _ in here:
        reader.close()


def test_a_rule_that_forgets_readers_is_noticed(
    volume: Rig, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume.create(b"f", random.Random(1).randbytes(MIB))
    volume.volume.sync()
    (seen,) = elsewhere.ask("open")
    volume.unlink(b"f")
    volume.volume.sync()
    for number in range(3):
        volume.create(b"n%d" % number)
        volume.volume.sync()
    give_back(volume)
    assert elsewhere.ask("look") == [seen]
    monkeypatch.setattr(Store, "readers", lambda self: [])
    give_back(volume)
    assert elsewhere.ask("look") != [seen]


def test_what_a_reader_holds_is_told(volume: Rig) -> None:
    volume.create(b"f", random.Random(1).randbytes(2 * MIB))
    volume.volume.sync()
    with Reader(volume.volume.store):
        volume.unlink(b"f")
        volume.volume.sync()
        for number in range(3):
            volume.create(b"n%d" % number)
            volume.volume.sync()
        assert give_back(volume).held > 2 * MIB
    assert give_back(volume).held < MIB


def test_a_reader_that_was_killed_holds_nothing(volume: Rig, elsewhere: Elsewhere) -> None:
    volume.create(b"f", random.Random(1).randbytes(2 * MIB))
    volume.volume.sync()
    elsewhere.ask("open")
    elsewhere.end()
    volume.unlink(b"f")
    volume.volume.sync()
    for number in range(3):
        volume.create(b"n%d" % number)
        volume.volume.sync()
    done = give_back(volume)
    assert done.before - done.after > 2 * MIB - 200_000


class Metas:
    """The meta pages before a commit, to take the newest one back."""

    def __init__(self, data: Path) -> None:
        self._data = data
        with open(data, "rb") as file:
            self._pages = file.read(2 * PAGE)

    def without_the_commit(self, copy: Path) -> None:
        """A copy of the file as a crash leaves it in which the newest meta page did not reach the
        disk."""
        shutil.copy(self._data, copy)
        newest = read_metas(copy)[0].page
        with open(copy, "r+b") as file:
            file.seek(newest * PAGE)
            file.write(self._pages[newest * PAGE :][:PAGE])


def what_a_repair_finds(data: Path) -> Rows:
    """Of a file whose newest meta page is gone altogether."""
    gone = data.with_name("gone")
    shutil.copy(data, gone)
    with open(gone, "r+b") as file:
        file.seek((1 - read_metas(data)[0].page) * PAGE)
        file.write(bytes(PAGE))
    found = best_harvest(gone)
    try:
        assert found.whole
        assert {damage.table for damage in found.damage} == {META}
        return {(table, key): value for table in TABLES for key, value in found.records(table)}
    finally:
        found.close()
        gone.unlink()


def stored(rows: Rows, store: Store) -> Rows:
    """Records with their checksums."""
    return {
        (table, key): store.tables[table].checksum.seal(key, value)
        for (table, key), value in rows.items()
    }


@pytest.mark.parametrize("seed", range(2))
def test_the_commit_before_is_whole(volume: Rig, fast_path: Path, seed: int) -> None:
    """When the newest meta page is lost, what the older one leads to is all there."""
    rng, data = random.Random(100 + seed), volume.store / "data.mdb"
    copy = fast_path / "copy"
    for _ in range(20):
        change(volume, rng)
        with Reader(volume.volume.store) as reader:
            before = dump(reader)
        metas = Metas(data)
        volume.save(b"one commit", rng.randbytes(rng.choice((10, 100_000))))
        group = volume.volume.quiesce()
        assert group is not None
        volume.volume.writer.wait(group)
        give_back(volume)
        copy.mkdir()
        metas.without_the_commit(copy / "data.mdb")
        assert sound(copy / "data.mdb")
        assert what_a_repair_finds(copy / "data.mdb") == stored(before, volume.volume.store)
        store = open_store(copy, writable=True)
        with Reader(store) as reader:
            assert dump(reader) == before
        store.close()
        shutil.rmtree(copy)
        volume.volume.sync()


def test_a_rule_that_forgets_the_older_meta_page_is_noticed(
    volume: Rig, fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FreeList.__init__

    def careless(self: FreeList, data: mmap.mmap, meta: object, oldest: int) -> None:
        real(self, data, meta, oldest + 1)  # type: ignore[arg-type]

    monkeypatch.setattr(FreeList, "__init__", careless)
    volume.create(b"f", random.Random(1).randbytes(MIB))
    volume.volume.sync()
    metas = Metas(volume.store / "data.mdb")
    volume.unlink(b"f")
    volume.volume.sync()
    give_back(volume)
    metas.without_the_commit(fast_path / "data.mdb")
    assert not sound(fast_path / "data.mdb")


# -- the list of free pages -------------------------------------------------------------------


def test_the_list_is_what_the_structure_says(volume: Rig) -> None:
    rng = random.Random(5)
    for _ in range(15):
        change(volume, rng)
        data = volume.store / "data.mdb"
        check = PageCheck(data)
        assert list(check.run()) == []
        with open(data, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            free = FreeList(mapped, read_metas(data)[0], 1 << 62)
            found = sorted(page for pages in free.lists() for page in pages)
            assert found == sorted(check._free)
            assert free.between(2, free.last + 1) == found
            assert free.held == 0
            mapped.close()


@pytest.mark.parametrize("seed", range(40))
def test_garbage_in_the_list(volume: Rig, seed: int) -> None:
    """Whatever it says: an answer, or that it makes no sense."""
    rng, data = random.Random(seed), volume.store / "data.mdb"
    make_garbage(volume, 1)
    meta = read_metas(data)[0]
    content = bytearray(data.read_bytes())
    for _ in range(rng.choice((1, 1, 4, 100))):
        # Most of what is there lies at the beginning and at the end.
        at = rng.choice((rng.randrange(PAGE), rng.randrange(40), PAGE - 1 - rng.randrange(200)))
        content[meta.free.root * PAGE + at] = rng.randrange(256)
    mapped = mmap.mmap(-1, len(content))
    mapped[:] = bytes(content)
    try:
        free = FreeList(mapped, meta, 1 << 62)
        pages = [page for some in free.lists() for page in some]
        assert all(2 <= page <= meta.last_page for page in pages)
        low, high = sorted(rng.randrange(meta.last_page) for _ in range(2))
        assert all(max(low, 2) <= page < high for page in free.between(low, high))
    except FreeListError:
        pass


def test_a_damaged_list_gives_nothing_back(volume: Rig) -> None:
    make_garbage(volume)
    volume.check = False
    data = volume.store / "data.mdb"
    meta = read_metas(data)[0]
    with open(data, "r+b") as file:
        file.seek(meta.free.root * PAGE)
        page = file.read(PAGE)
        file.seek(meta.free.root * PAGE)
        file.write(bytes(PAGE))
    used = data.stat().st_blocks
    with pytest.raises(CompactFailedError, match="page"):
        give_back(volume)
    assert data.stat().st_blocks == used
    with open(data, "r+b") as file:
        file.seek(meta.free.root * PAGE)
        file.write(page)


# -- where it does not work -------------------------------------------------------------------


def test_a_file_system_without_holes(fast_path: Path, needs_fuse: None) -> None:
    with recording(fast_path) as (mountpoint, _):
        store = fast_path / "store"
        store.mkdir()
        os.symlink(mountpoint / "disk", store / "data.mdb.new")
        rig = Rig(store, None)
        make_garbage(rig, 1)
        with pytest.raises(CompactHolesError, match="cannot take back"):
            give_back(rig)
        rig.create(b"f", b"goes on")
        rig.volume.sync()
        check_verified(rig)
        rig.close()


def test_blocks_that_are_larger_than_pages(volume: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whole ones: what else lies in a block must not be written anew."""
    make_garbage(volume)
    real, begin, made = holes._fallocate, holes._File.__init__, []

    def with_large_blocks(self: holes._File, store: Store) -> None:
        begin(self, store)
        self._step = 8

    def note(fd: int, mode: int, offset: int, length: int) -> int:
        made.append((offset, length))
        return int(real(fd, mode, offset, length))

    monkeypatch.setattr(holes._File, "__init__", with_large_blocks)
    monkeypatch.setattr(holes, "_fallocate", note)
    done = give_back(volume)
    assert done.before - done.after > 3 * MIB
    assert all(offset % (8 * PAGE) == length % (8 * PAGE) == 0 for offset, length in made)
    assert sound(volume.store / "data.mdb")
    check_verified(volume)


def test_a_disk_without_room_for_a_hole(volume: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may need room to note a hole: then the reserve gives it."""
    make_garbage(volume)
    real = holes._fallocate
    failed: list[tuple[int, ...]] = []

    def refuse(*arguments: int) -> int:
        if not failed:
            failed.append(arguments)
            ctypes.set_errno(errno.ENOSPC)
            return -1
        return int(real(*arguments))

    monkeypatch.setattr(holes, "_fallocate", refuse)
    done = give_back(volume)
    assert failed
    assert done.before - done.after > 3 * MIB


@pytest.mark.parametrize("step", [step for step in steps.STEPS if step.startswith("holes.")])
def test_killed(base: Path, fast_path: Path, step: str) -> None:
    program = """
import sys
from pathlib import Path
from cowfs.store import steps
from tests.store.test_holes import give_back, make_garbage
from tests.support.volumes import Rig
rig = Rig(Path(sys.argv[1]), Path(sys.argv[2]))
make_garbage(rig, 2)
rig.create(b"f", b"kept")
rig.volume.sync()
steps.arm(sys.argv[3])
give_back(rig)
"""
    store = fast_path / "store"
    done = subprocess.run(
        [sys.executable, "-c", program, str(store), str(base), step],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -9, done.stderr.decode()
    rig = Rig(store, base)
    assert rig.read(b"f") == b"kept"
    assert rig.read(b"stays") == b"stays" * 1000
    give_back(rig)
    rig.finish()
