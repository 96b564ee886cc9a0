"""A mount on a damaged store: what is damaged is an error, everything else works (contract 5)."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from cowfs.format import codec, keys
from cowfs.format.checksum import of_table
from cowfs.format.version import VERSION
from cowfs.service.verify import Report, verify
from cowfs.service.workspace import reading
from cowfs.store.env import TABLES
from tests.support.mounting import Mounted
from tests.verify.sample import Sample, noise
from tests.verify.test_structure import PAGE, leaf_of

BLOCK = 65536
Mount = Callable[..., AbstractContextManager[Mounted]]


class Store:
    """The tables of a store that no daemon has open."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def _open(self, table: str) -> Iterator[tuple[Any, Any]]:
        env = lmdb.open(str(self._path), max_dbs=len(TABLES), map_size=1 << 30)
        try:
            db = env.open_db(table.encode(), create=False)
            with env.begin(write=True) as txn:
                yield txn, db
        finally:
            env.close()

    def change(self, table: str, key: bytes, change: Callable[[bytes], bytes]) -> None:
        """Replace a value with one whose checksum is right."""
        checksum = of_table(table, VERSION)
        with self._open(table) as (txn, db):
            old = txn.get(key, db=db)
            assert old is not None
            txn.put(key, checksum.seal(key, change(checksum.open(key, bytes(old)))), db=db)

    def falsify(self, table: str, key: bytes) -> None:
        """Flip two bits of a value, so that its checksum is wrong."""
        with self._open(table) as (txn, db):
            old = bytearray(txn.get(key, db=db) or b"")
            old[0] ^= 4
            old[-1] ^= 0x10
            txn.put(key, bytes(old), db=db)

    def drop(self, table: str, key: bytes) -> None:
        """Take a record out."""
        with self._open(table) as (txn, db):
            assert txn.delete(key, db=db)

    def versions(self, table: str, prefix: bytes) -> list[bytes]:
        """All keys that start so, newest version first."""
        with self._open(table) as (txn, db), txn.cursor(db=db) as cursor:
            return [bytes(key) for key, _ in cursor if bytes(key).startswith(prefix)]

    def extent(self, ino: int, number: int) -> bytes:
        """Hash of a block of a file that has only one version."""
        with self._open("extent") as (txn, db), txn.cursor(db=db) as cursor:
            assert cursor.set_range(keys.extent_prefix(ino, number))
            return of_table("extent", VERSION).open(bytes(cursor.key()), bytes(cursor.value()))

    def key(self, table: str, prefix: bytes) -> bytes:
        """The newest key that starts so."""
        with self._open(table) as (txn, db), txn.cursor(db=db) as cursor:
            assert cursor.set_range(prefix)
            key = bytes(cursor.key())
        assert key.startswith(prefix)
        return key

    def verify(self) -> Report:
        with reading(self._path, None) as workspace:
            return verify(workspace)


def flip(value: bytes) -> bytes:
    """The last bit changed."""
    return value[:-1] + bytes((value[-1] ^ 1,))


def error_of(call: Callable[..., object], *arguments: Any) -> int:
    """The errno of a call that fails, 0 when it does not."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno or 0
    return 0


def problems(mount: Mounted) -> list[tuple[str, str]]:
    report = mount.call("status")
    return [(row["kind"], row["path"]) for row in report["health"]["problems"]]


@pytest.fixture
def files(mounted: Mount, base: Path) -> dict[str, int]:
    """A store with some files; inode numbers by name. Not mounted."""
    with mounted(base) as mount:
        top = mount.mountpoint
        (top / "dir").mkdir()
        (top / "dir" / "big").write_bytes(noise(1, 3 * BLOCK))
        (top / "dir" / "other").write_bytes(b"other")
        (top / "small").write_bytes(noise(2, 1000))
        os.symlink("small", top / "link")
        mount.checkpoint("all well", "well")
        return {
            name: os.lstat(top / name).st_ino
            for name in ("", "dir", "dir/big", "dir/other", "small", "link")
        }


@pytest.fixture
def store(base: Path, files: dict[str, int]) -> Store:
    return Store(base.with_name(base.name + ".store"))


@pytest.fixture
def damaged_block(store: Store, files: dict[str, int]) -> bytes:
    """The second block of dir/big has a flipped bit; its hash."""
    digest = store.extent(files["dir/big"], 1)
    store.change("block", digest, flip)
    return digest


def test_a_damaged_block_is_an_error_of_that_file_only(
    mounted: Mount, base: Path, damaged_block: bytes
) -> None:
    with mounted(base, check=False) as mount:
        big, top = mount.mountpoint / "dir" / "big", mount.mountpoint
        assert error_of(big.read_bytes) == errno.EIO
        with open(big, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            assert os.pread(file.fileno(), BLOCK, 0) == noise(1, 3 * BLOCK)[:BLOCK]
            assert os.pread(file.fileno(), BLOCK, 2 * BLOCK) == noise(1, 3 * BLOCK)[2 * BLOCK :]
        assert (top / "dir" / "other").read_bytes() == b"other"
        assert (top / "small").read_bytes() == noise(2, 1000)
        assert error_of(big.read_bytes) == errno.EIO  # not only once
        report = mount.call("status")["health"]
        assert report["state"] == "warning"
        (row,) = report["problems"]  # and listed once
        assert (row["kind"], row["path"]) == ("damaged", "dir/big")
        assert damaged_block.hex()[:12] in row["detail"]
        (top / "new").write_bytes(b"new")
        big.rename(top / "moved")
        assert (top / "moved").stat().st_size == 3 * BLOCK


def test_checkpoint_and_restore_go_on_with_a_damaged_block(
    mounted: Mount, base: Path, store: Store, damaged_block: bytes
) -> None:
    with mounted(base, check=False) as mount:
        top = mount.mountpoint
        (top / "dir" / "big").unlink()
        (top / "small").write_bytes(b"changed")
        second = mount.checkpoint("second")
        mount.restore("well")
        assert (top / "small").read_bytes() == noise(2, 1000)
        assert error_of((top / "dir" / "big").read_bytes) == errno.EIO
        mount.restore(second)
        assert not (top / "dir" / "big").exists()
        assert (top / "small").read_bytes() == b"changed"
        mount.call("undo")
        assert error_of((top / "dir" / "big").read_bytes) == errno.EIO
    assert {problem.check for problem in store.verify().problems} == {"block-damaged"}


@pytest.mark.parametrize("way", ["over", "anew", "the same"])
def test_writing_over_a_damaged_block(
    mounted: Mount, base: Path, store: Store, damaged_block: bytes, way: str
) -> None:
    content = noise(1 if way == "the same" else 7, 3 * BLOCK)
    with mounted(base, check=False) as mount:
        big = mount.mountpoint / "dir" / "big"
        with open(big, "wb" if way == "anew" else "r+b") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        assert big.read_bytes() == content
    with mounted(base, check=False) as mount:
        assert (mount.mountpoint / "dir" / "big").read_bytes() == content
    # The same bytes are the same block: its history is whole again, too.
    wanted = set() if way == "the same" else {"well"}
    names = {p.checkpoints for p in store.verify().problems}
    assert bool(names) == bool(wanted)


def test_the_same_content_in_another_file_heals_the_block(
    mounted: Mount, base: Path, store: Store, damaged_block: bytes
) -> None:
    with mounted(base, check=False) as mount:
        big = mount.mountpoint / "dir" / "big"
        assert error_of(big.read_bytes) == errno.EIO
        (mount.mountpoint / "copy").write_bytes(noise(1, 3 * BLOCK))
        mount.call("flush")
        assert big.read_bytes() == noise(1, 3 * BLOCK)
    assert store.verify().problems == []


def test_a_damaged_inode_is_an_error_of_that_name_only(
    mounted: Mount, base: Path, store: Store, files: dict[str, int]
) -> None:
    key = store.key("inode", keys.pack_id(files["dir/other"]))
    store.change("inode", key, lambda value: value[:20])
    with mounted(base, check=False) as mount:
        top = mount.mountpoint
        assert sorted(os.listdir(top / "dir")) == ["big", "other"]
        assert error_of(os.lstat, top / "dir" / "other") == errno.EIO
        assert (top / "dir" / "big").read_bytes() == noise(1, 3 * BLOCK)
        assert problems(mount) == [("damaged", "dir/other")]
        (top / "dir" / "new").write_bytes(b"new")
        mount.checkpoint()
        mount.restore("well")
        assert sorted(os.listdir(top / "dir")) == ["big", "other"]


def told(store: Store) -> set[tuple[str, str, str]]:
    """What `verify` says: (check, table, thing)."""
    return {(p.check, p.table, p.thing) for p in store.verify().problems}


@pytest.fixture
def damaged_inode(store: Store, files: dict[str, int]) -> None:
    """The inode of dir/other does not decode; its history has no other version."""
    key = store.key("inode", keys.pack_id(files["dir/other"]))
    store.change("inode", key, lambda value: value[:20])


@pytest.fixture
def missing_inode(store: Store, files: dict[str, int]) -> None:
    """That of dir/other is not there at all."""
    store.drop("inode", store.key("inode", keys.pack_id(files["dir/other"])))


@pytest.mark.parametrize("way", ["damaged_inode", "missing_inode"])
def test_the_name_of_a_damaged_inode_can_be_removed(
    request: pytest.FixtureRequest, mounted: Mount, base: Path, store: Store, way: str
) -> None:
    request.getfixturevalue(way)
    before = told(store)
    with mounted(base, check=False) as mount:
        other = mount.mountpoint / "dir" / "other"
        assert error_of(os.lstat, other) == errno.EIO
        assert error_of(other.read_bytes) == errno.EIO
        assert error_of(other.write_bytes, b"anew") == errno.EIO
        # Of a user the kernel may refuse it itself: the owner is not known (protected_hardlinks).
        refused = {errno.EIO} if os.geteuid() == 0 else {errno.EIO, errno.EPERM}
        assert error_of(os.link, other, mount.mountpoint / "link2") in refused
        assert error_of(os.rename, other, mount.mountpoint / "moved") == errno.EIO
        assert subprocess.run(["rm", "-f", other], check=False).returncode == 0
        assert os.listdir(mount.mountpoint / "dir") == ["big"]
        other.write_bytes(b"anew")
        second = mount.checkpoint("second")
        mount.restore("well")  # there it is as damaged as it was
        assert sorted(os.listdir(mount.mountpoint / "dir")) == ["big", "other"]
        assert error_of(os.lstat, other) == errno.EIO
        mount.restore(second)
        assert other.read_bytes() == b"anew"
    with mounted(base, check=False) as mount:
        assert (mount.mountpoint / "dir" / "other").read_bytes() == b"anew"
    assert told(store) == before  # the history keeps its damage, and no other came


def test_the_name_of_a_damaged_inode_can_be_replaced(
    mounted: Mount, base: Path, store: Store, damaged_inode: None
) -> None:
    before = told(store)
    with mounted(base, check=False) as mount:
        other = mount.mountpoint / "dir" / "other"
        (mount.mountpoint / "new").write_bytes(b"new")
        os.rename(mount.mountpoint / "new", other)
        assert other.read_bytes() == b"new"
    with mounted(base, check=False) as mount:
        assert (mount.mountpoint / "dir" / "other").read_bytes() == b"new"
    assert told(store) == before


def test_one_of_two_names_of_a_damaged_inode(
    mounted: Mount, base: Path, store: Store, files: dict[str, int]
) -> None:
    with mounted(base) as mount:
        os.link(mount.mountpoint / "small", mount.mountpoint / "dir" / "second")
        mount.checkpoint()
    key = store.key("inode", keys.pack_id(files["small"]))
    store.change("inode", key, lambda value: value[:20])
    before = told(store)
    with mounted(base, check=False) as mount:
        top = mount.mountpoint
        os.unlink(top / "small")
        assert error_of(os.lstat, top / "dir" / "second") == errno.EIO
        os.unlink(top / "dir" / "second")
        assert sorted(os.listdir(top)) == ["dir", "link"]
    assert told(store) == before


def test_a_damaged_directory_is_removed_when_it_is_empty(
    mounted: Mount, base: Path, store: Store, files: dict[str, int]
) -> None:
    with mounted(base) as mount:
        (mount.mountpoint / "dir" / "empty").mkdir()
        ino = (mount.mountpoint / "dir" / "empty").stat().st_ino
        mount.checkpoint()
    for number in (ino, files["dir"]):
        key = store.key("inode", keys.pack_id(number))
        store.change("inode", key, lambda value: value[:20])
    with mounted(base, check=False) as mount:
        top = mount.mountpoint
        assert error_of(os.listdir, top / "dir") == errno.EIO
        assert error_of(os.rmdir, top / "dir") == errno.ENOTEMPTY
        assert error_of(os.unlink, top / "dir") == errno.EISDIR
        assert (top / "small").read_bytes() == noise(2, 1000)


def test_a_file_that_is_open_when_a_restore_shows_its_damage(
    mounted: Mount, base: Path, store: Store, files: dict[str, int]
) -> None:
    """Its old version is damaged, its present one is not."""
    with mounted(base) as mount:
        (mount.mountpoint / "dir" / "other").write_bytes(b"changed")
        mount.checkpoint()
    oldest = store.versions("inode", keys.pack_id(files["dir/other"]))[-1]
    store.change("inode", oldest, lambda value: value[:20])
    with mounted(base, check=False) as mount:
        top = mount.mountpoint
        with open(top / "dir" / "other", "rb", buffering=0) as file:
            assert file.read() == b"changed"
            mount.restore("well")
            assert error_of(os.pread, file.fileno(), 10, 0) == errno.EIO
            assert error_of(os.lstat, top / "dir" / "other") == errno.EIO
            assert sorted(os.listdir(top / "dir")) == ["big", "other"]
            mount.call("undo")
            assert os.pread(file.fileno(), 10, 0) == b"changed"
        assert (top / "dir" / "other").read_bytes() == b"changed"


def test_a_damaged_entry_is_told_by_its_inode(
    mounted: Mount, base: Path, store: Store, files: dict[str, int]
) -> None:
    key = store.key("dirent", keys.dirent_prefix(files["dir"], b"other"))
    store.change("dirent", key, lambda value: value[:5])
    before = told(store)
    with mounted(base, check=False) as mount:
        top = mount.mountpoint
        assert sorted(os.listdir(top / "dir")) == ["big", "other"]
        assert (top / "dir" / "other").read_bytes() == b"other"
        assert ("damaged", "dir/other") in problems(mount)
        (top / "dir" / "new").write_bytes(b"new")
        os.unlink(top / "dir" / "other")
    with mounted(base, check=False) as mount:
        assert sorted(os.listdir(mount.mountpoint / "dir")) == ["big", "new"]
    assert told(store) == before


def test_a_damaged_entry_of_which_nothing_else_tells(
    mounted: Mount, base: Path, store: Store, files: dict[str, int]
) -> None:
    key = store.key("dirent", keys.dirent_prefix(files["dir"], b"other"))
    store.change("dirent", key, lambda value: value[:5])
    store.drop("link", store.key("link", keys.pack_id(files["dir/other"])))
    with mounted(base, check=False) as mount:
        top = mount.mountpoint
        assert sorted(os.listdir(top / "dir")) == ["big", "other"]
        assert error_of(os.lstat, top / "dir" / "other") == errno.EIO
        os.unlink(top / "dir" / "other")
        assert os.listdir(top / "dir") == ["big"]
        (top / "dir" / "other").write_bytes(b"anew")
    with mounted(base, check=False) as mount:
        assert (mount.mountpoint / "dir" / "other").read_bytes() == b"anew"


def test_a_damaged_extent_is_an_error_of_that_file_only(
    mounted: Mount, base: Path, store: Store, files: dict[str, int]
) -> None:
    key = store.key("extent", keys.extent_prefix(files["small"], 0))
    store.change("extent", key, lambda _: codec.block_hash(b"nothing that is stored"))
    with mounted(base, check=False) as mount:
        assert error_of((mount.mountpoint / "small").read_bytes) == errno.EIO
        assert (mount.mountpoint / "link").is_symlink()
        assert problems(mount) == [("damaged", "small")]
        (mount.mountpoint / "small").write_bytes(b"anew")
        assert (mount.mountpoint / "small").read_bytes() == b"anew"


def test_damaged_pages_of_a_table_leave_the_others(
    mounted: Mount, base: Path, store: Store, files: dict[str, int]
) -> None:
    """Attributes cannot be read; a request that met the damage does not spoil the next ones."""
    path = base.with_name(base.name + ".store")
    with mounted(base) as mount:
        os.setxattr(mount.mountpoint / "small", "user.a", b"1")
    sample = Sample(path, base, {}, {})
    page = leaf_of(sample, "xattr")
    with open(path / "data.mdb", "r+b") as file:
        file.seek(page * PAGE)
        file.write(bytes(PAGE))
    with mounted(base, check=False) as mount:
        top = mount.mountpoint
        assert (top / "dir" / "big").read_bytes() == noise(1, 3 * BLOCK)
        assert error_of(os.getxattr, top / "small", "user.a") == errno.EIO
        assert sorted(os.listdir(top)) == ["dir", "link", "small"]
