"""Opening and making stores: one writer, many readers, nothing touched that is not ours."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest

import cowfs
from cowfs.errors import (
    StoreDamagedError,
    StoreFormatError,
    StoreLockedError,
    StoreMissingError,
)
from cowfs.format import records, version
from cowfs.store.env import (
    TABLES,
    Store,
    create_store,
    open_store,
    owner_pid,
    store_exists,
)
from cowfs.types import BLOCK_SIZE

ROOT = Path(cowfs.__file__).resolve().parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store with one record."""
    place = tmp_path / "store"
    create_store(place, [("label", b"a", b"1")]).close()
    return place


def change_format(path: Path, **fields: Any) -> None:
    """Rewrite the format record as another version of cowfs would."""
    env = lmdb.open(str(path), max_dbs=len(TABLES), map_size=1 << 30)
    with env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn=txn, create=False)
        old = version.decode_format(bytes(txn.get(b"format", db=meta) or b""))
        new = version.sealed(msgspec.structs.replace(old, **fields))
        txn.put(b"format", records.encode(new), db=meta)
    env.close()


def digest(path: Path) -> str:
    return hashlib.sha256((path / "data.mdb").read_bytes()).hexdigest()


def test_a_store_is_private(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / "data.mdb").stat().st_mode) == 0o600
    assert stat.S_IMODE((path / "owner").stat().st_mode) == 0o600


def test_a_directory_that_was_open_becomes_private(tmp_path: Path) -> None:
    place = tmp_path / "store"
    place.mkdir(mode=0o755)
    create_store(place, []).close()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_store_says_its_format(path: Path) -> None:
    store = open_store(path, writable=False)
    found = store.format()
    store.close()
    assert (found.version, found.block_size) == (version.VERSION, BLOCK_SIZE)
    assert (found.compatible, found.incompatible) == (0, 0)
    assert len(found.uuid) == 32


def test_what_was_written_is_read(path: Path) -> None:
    for writable in (False, True):
        store = open_store(path, writable=writable)
        assert store.get("label", b"a") == b"1"
        assert store.get("label", b"b") is None
        assert store.bytes_used() > 0
        store.close()


def test_a_second_writer_is_refused(store: Store) -> None:
    with pytest.raises(StoreLockedError, match=f"pid {os.getpid()}"):
        open_store(store.path, writable=True)


def test_a_store_cannot_be_made_where_one_is_in_use(store: Store) -> None:
    with pytest.raises(StoreLockedError):
        create_store(store.path, [])


def test_a_writer_of_another_process_is_seen_and_does_not_stop_readers(store: Store) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from cowfs.errors import StoreLockedError\n"
        "from cowfs.store.env import open_store, owner_pid\n"
        "path = Path(sys.argv[1])\n"
        "print(owner_pid(path))\n"
        "print(open_store(path, writable=False).get('meta', b'format') is not None)\n"
        "try:\n"
        "    open_store(path, writable=True)\n"
        "except StoreLockedError as error:\n"
        "    print(error.details['pid'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(store.path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(os.getpid()), "True", str(os.getpid())]


def test_the_lock_goes_with_its_holder(path: Path) -> None:
    assert owner_pid(path) is None
    store = open_store(path, writable=True)
    assert owner_pid(path) == os.getpid()
    store.close()
    assert owner_pid(path) is None
    open_store(path, writable=True).close()


def test_the_lock_of_a_process_that_was_killed_is_free(path: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from cowfs.store.env import open_store\n"
        "store = open_store(Path(sys.argv[1]), writable=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == -9
    open_store(path, writable=True).close()


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"version": 3}, "format version 3"),
        ({"incompatible": 1 << 7}, "unknown incompatible features 0x80"),
        ({"block_size": 4096}, "blocks of 4096 bytes"),
    ],
)
def test_a_store_of_a_newer_version_is_refused_and_not_touched(
    path: Path, fields: dict[str, int], detail: str, writable: bool
) -> None:
    change_format(path, **fields)
    before = digest(path)
    with pytest.raises(StoreFormatError, match=detail):
        open_store(path, writable=writable)
    assert digest(path) == before
    if writable:
        assert owner_pid(path) is None


def test_unknown_compatible_features_are_kept(path: Path) -> None:
    change_format(path, compatible=1 << 9)
    store = open_store(path, writable=True)
    assert store.format().compatible == 1 << 9
    store.close()


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        assert not store_exists(place)
        with pytest.raises(StoreMissingError):
            open_store(place, writable=False)
        with pytest.raises(StoreMissingError):
            open_store(place, writable=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("writable", [False, True])
def test_a_file_that_is_no_store(path: Path, writable: bool) -> None:
    (path / "data.mdb").write_bytes(b"not a store" * 1000)
    with pytest.raises(StoreDamagedError):
        open_store(path, writable=writable)


@pytest.mark.parametrize("writable", [False, True])
def test_a_file_that_was_cut_off(path: Path, writable: bool) -> None:
    """LMDB would read beyond its end, which ends the process (SIGBUS)."""
    size = (path / "data.mdb").stat().st_size
    for pages in range(3, size // mmap.PAGESIZE):
        os.truncate(path / "data.mdb", pages * mmap.PAGESIZE)
        with pytest.raises(StoreDamagedError, match="cut off"):
            open_store(path, writable=writable)
        os.truncate(path / "data.mdb", size)


def test_a_file_that_is_shorter_than_it_says_but_has_all_it_needs(path: Path) -> None:
    """LMDB does not write a page that is free again before its commit."""
    with open(path / "data.mdb", "r+b") as file:
        for meta in (0, 1):
            at = meta * mmap.PAGESIZE + 16 + 24 + 96
            file.seek(at)
            last = int.from_bytes(file.read(8), "little")
            file.seek(at)
            file.write((last + 3).to_bytes(8, "little"))
    store = open_store(path, writable=True)
    assert store.get("label", b"a") == b"1"
    store.close()


def test_a_store_without_a_format_record(path: Path) -> None:
    env = lmdb.open(str(path), max_dbs=len(TABLES), map_size=1 << 30)
    with env.begin(write=True) as txn:
        txn.delete(b"format", db=env.open_db(b"meta", txn=txn, create=False))
    env.close()
    for writable in (False, True):
        with pytest.raises(StoreDamagedError, match="no format record"):
            open_store(path, writable=writable)


def test_a_format_record_that_does_not_decode(path: Path) -> None:
    env = lmdb.open(str(path), max_dbs=len(TABLES), map_size=1 << 30)
    with env.begin(write=True) as txn:
        txn.put(b"format", b"garbage", db=env.open_db(b"meta", txn=txn, create=False))
    env.close()
    with pytest.raises(StoreDamagedError, match="FormatRecord"):
        open_store(path, writable=False)


def test_a_store_without_one_of_its_tables_is_damaged_for_readers(path: Path) -> None:
    env = lmdb.open(str(path), max_dbs=len(TABLES), map_size=1 << 30)
    with env.begin(write=True) as txn:
        txn.drop(env.open_db(b"hardlink", txn=txn, create=False))
    env.close()
    with pytest.raises(StoreDamagedError, match="hardlink"):
        open_store(path, writable=False)


def test_a_creation_that_was_interrupted_leaves_no_store(tmp_path: Path) -> None:
    """Killed before the first commit: what is there can be made into a store."""
    empty, pages = tmp_path / "empty", tmp_path / "pages"
    for place in (empty, pages):
        place.mkdir()
        (place / "data.mdb").touch()
    lmdb.open(str(pages), map_size=1 << 30).close()
    assert (pages / "data.mdb").stat().st_size == 2 * mmap.PAGESIZE
    for place in (empty, pages):
        assert not store_exists(place)
        create_store(place, [("label", b"a", b"1")]).close()
        assert store_exists(place)
        store = open_store(place, writable=False)
        assert store.get("label", b"a") == b"1"
        store.close()


def test_a_creation_that_a_power_cut_interrupted_can_be_repeated(tmp_path: Path) -> None:
    """LMDB writes a new file's pages before the meta pages that make them valid."""
    (tmp_path / "data.mdb.new").write_bytes(bytes(40 * mmap.PAGESIZE))
    assert not store_exists(tmp_path)
    create_store(tmp_path, [("label", b"a", b"1")]).close()
    assert store_exists(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"data.mdb", "lock.mdb", "owner"}


def test_a_creation_that_fails_leaves_no_store_and_no_lock(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with pytest.raises(lmdb.BadValsizeError):
        create_store(place, [("label", b"a", b"1"), ("label", b"", b"an empty key")])
    assert not store_exists(place)
    assert owner_pid(place) is None
    create_store(place, []).close()
    assert store_exists(place)
