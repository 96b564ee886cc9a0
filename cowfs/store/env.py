"""Opening a store: the LMDB environment, its tables, its format record and its lock.

A store is a directory (mode 0700): `data.mdb` and `lock.mdb` of LMDB, `owner` (an flock held by
the one process that may write, with its pid as text), `reserve` (store/room.py). Any number of
processes may read.

Threading: an open `Store` may be used from any thread; a read transaction belongs to the thread
that made it, and write transactions are made by the writer thread only (store/writer.py), since
LMDB's writer lock belongs to the thread that took it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import resource
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast

import lmdb

from cowfs import __version__
from cowfs.errors import (
    DamagedRecordError,
    PermissionDeniedError,
    StoreDamagedError,
    StoreFormatError,
    StoreLockedError,
    StoreMissingError,
)
from cowfs.format import records, version
from cowfs.store.pages import is_cut_off
from cowfs.store.room import RESERVE_BYTES, SLACK_BYTES, Reserve, Room
from cowfs.store.steps import reached
from cowfs.types import BLOCK_SIZE

TABLES = (
    "inode",
    "dirent",
    "link",
    "xattr",
    "extent",
    "block",
    "base",
    "origin",
    "hardlink",
    "epoch",
    "change",
    "checkpoint",
    "label",
    "branch",
    "operation",
    "orphan",
    "meta",
)
_NEW = "data.mdb.new"
"""A store in the making: nobody takes it for a store, whatever a crash leaves of it."""
_MAP_SIZES = (1 << 42, 1 << 40, 1 << 36, 1 << 33)
"""Address space to reserve, tried in turn: the file itself only grows as it is filled."""

LmdbError = lmdb.Error


class Cursor(Protocol):
    """The part of lmdb.Cursor that the store uses, with `bytes` as it is without buffers."""

    def key(self) -> bytes: ...
    def value(self) -> bytes: ...
    def set_range(self, key: bytes) -> bool: ...
    def last(self) -> bool: ...
    def next(self) -> bool: ...
    def delete(self) -> bool: ...
    def putmulti(self, items: Sequence[tuple[bytes, bytes]]) -> tuple[int, int]: ...
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[tuple[bytes, bytes]]: ...
    def __enter__(self) -> Cursor: ...
    def __exit__(self, *exc: object) -> None: ...


class Transaction(Protocol):
    """The part of lmdb.Transaction that the store uses."""

    def get(self, key: bytes, *, db: object) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, *, db: object) -> bool: ...
    def delete(self, key: bytes, *, db: object) -> bool: ...
    def cursor(self, db: object) -> Cursor: ...
    def stat(self, db: object) -> dict[str, int]: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Transaction: ...
    def __exit__(self, *exc: object) -> None: ...


class Store:
    """An open store. Use `open_store` or `create_store`.

    quota: bytes that it may hold, 0 for no limit. reserve: what a writable one keeps back.
    """

    def __init__(
        self, path: Path, env: lmdb.Environment, *, writable: bool, damaged: bool = False
    ) -> None:
        """`damaged`: tables that are missing are left out of `tables`."""
        self.path = path
        self.env = env
        self.writable = writable
        self.quota = 0
        self.reserve = Reserve(path)
        # A name may come to mean something else: the disk may be unmounted lazily.
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._owner: int | None = None
        try:
            if writable:
                _lock_directory(path, self._directory)
            self._main: object = env.open_db(None)
            self.tables = self._all_tables(damaged)
        except BaseException:
            os.close(self._directory)
            raise

    def _all_tables(self, damaged: bool) -> dict[str, object]:
        tables: dict[str, object] = {}
        for name in TABLES:
            try:
                tables[name] = self._table(name)
            except StoreDamagedError:
                if not damaged:
                    raise
        return tables

    def _table(self, name: str) -> object:
        try:
            return self.env.open_db(name.encode(), create=self.writable)
        except lmdb.NotFoundError:
            detail = f"its table {name} is missing"
            raise StoreDamagedError(path=str(self.path), detail=detail) from None
        except lmdb.Error as error:
            raise StoreDamagedError(path=str(self.path), detail=str(error)) from None

    def begin(self, *, write: bool = False) -> Transaction:
        """A transaction; for reading, a snapshot of the last commit. Abort it soon."""
        return cast(Transaction, self.env.begin(write=write, buffers=False))

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A short read transaction."""
        txn = self.begin()
        try:
            yield txn
        finally:
            txn.abort()

    def get(self, table: str, key: bytes) -> bytes | None:
        """One value in a transaction of its own."""
        with self.reading() as txn:
            return txn.get(key, db=self.tables[table])

    def bytes_used(self) -> int:
        """Bytes of disk that the data file takes."""
        return os.stat("data.mdb", dir_fd=self._directory).st_blocks * 512

    def file_system(self) -> os.statvfs_result:
        """statvfs(3) of the file system that holds the store."""
        return os.statvfs(self._directory)

    def free_bytes(self) -> int:
        """Bytes that are free on the store's file system for its user."""
        stats = self.file_system()
        return stats.f_bavail * stats.f_frsize

    def cannot_grow(self) -> bool:
        """Whether the disk, or the limit on the size of files (ulimit -f), leaves hardly room."""
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY:
            size = os.stat("data.mdb", dir_fd=self._directory).st_size
            if size + SLACK_BYTES > limit:
                return True
        return self.free_bytes() < SLACK_BYTES

    def room(self) -> Room:
        """What the store can still take: some counters of LMDB and one statvfs(2)."""
        with self.reading() as txn:
            stats = [txn.stat(table) for table in (self._main, *self.tables.values())]
        page = stats[0]["psize"]
        pages = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
        info = self.env.info()
        total = info["last_pgno"] + 1
        return Room(
            used=pages * page,
            inside=max(total - pages - 2, 0) * page,
            outside=min(self.free_bytes(), max(info["map_size"] - total * page, 0)),
            reserved=0 if self.reserve.held else RESERVE_BYTES,
            quota=self.quota,
        )

    def keep_reserve(self) -> None:
        """Have the reserve when there is room for it; when there is hardly any room at all, give it
        up, so that the small files of a daemon can be written. For the opener of a store."""
        free = self.free_bytes()
        if free < SLACK_BYTES:
            self.reserve.give_up()
        else:
            self.reserve.take(free)

    def format(self) -> records.FormatRecord:
        """The format record."""
        value = self.get("meta", b"format")
        if value is None:
            raise StoreDamagedError(path=str(self.path), detail="it has no format record")
        return records.decode(value, records.FormatRecord)

    def close(self) -> None:
        """Close the environment and release the owner's lock."""
        self.env.close()
        os.close(self._directory)
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def _take_ownership(self) -> None:
        self._owner = lock_owner(self.path)


def lock_owner(path: Path) -> int:
    """Take the right to write the store; the descriptor holds it. Raises StoreLockedError."""
    fd = os.open(path / "owner", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise StoreLockedError(path=str(path), pid=holder) from None
    with contextlib.suppress(OSError):  # a full disk: the lock counts, the pid is for messages
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def _lock_directory(path: Path, directory: int) -> None:
    """The lock on `owner` once more, on something that cannot be removed while a store is open.

    Raises StoreLockedError. Where directories cannot be locked (NFS) there is only the first lock.
    """
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = "unknown"
        with contextlib.suppress(OSError):
            pid = (path / "daemon.pid").read_text(encoding="ascii", errors="replace").strip()
        raise StoreLockedError(path=str(path), pid=pid) from None
    except OSError:
        pass


def owner_pid(path: Path) -> int | None:
    """Pid of the process that holds the store for writing, None when nobody does."""
    try:
        fd = os.open(path / "owner", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        text = os.read(fd, 32).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(fd)
    return None


def _open_env(path: Path, *, writable: bool, new: bool = False) -> lmdb.Environment:
    """The environment of a store; with `new` that of one that is being made."""
    if is_cut_off(path / (_NEW if new else "data.mdb")):
        raise StoreDamagedError(path=str(path), detail="its file was cut off")
    last: Exception | None = None
    for map_size in _MAP_SIZES:
        try:
            return lmdb.open(
                os.fsencode(path / _NEW if new else path),
                subdir=not new,
                map_size=map_size,
                max_dbs=len(TABLES) + 4,
                max_readers=512,
                readonly=not writable,
                create=False,
                mode=0o600,
                readahead=True,
                meminit=False,
            )
        except (MemoryError, lmdb.MemoryError, OSError) as error:
            last = error
        except lmdb.InvalidError as error:
            raise StoreDamagedError(path=str(path), detail=str(error)) from None
        except lmdb.Error as error:
            if "Permission" in str(error):
                raise PermissionDeniedError(detail=f"{path} cannot be opened") from None
            if "Cannot allocate" not in str(error):
                raise StoreDamagedError(path=str(path), detail=str(error)) from None
            last = error
    raise StoreDamagedError(path=str(path), detail=f"it cannot be mapped: {last}")


def sync_directory(path: Path) -> None:
    """Put the names in a directory on stable storage."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def store_exists(path: Path) -> bool:
    """Whether a store was created there. Raises PermissionDeniedError when that cannot be seen.

    An empty `data.mdb`, or one with LMDB's two meta pages only, is no store.
    """
    try:
        return (path / "data.mdb").stat().st_size > 2 * mmap.PAGESIZE
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        raise PermissionDeniedError(detail=f"{path} cannot be read") from None


def open_store(path: Path, *, writable: bool, damaged: bool = False) -> Store:
    """Open an existing store and check its format.

    damaged: for `verify`, also one whose format record or some of whose tables cannot be read.
    Raises StoreMissingError, StoreLockedError (writable only), StoreFormatError,
    StoreDamagedError, PermissionDeniedError. Nothing is written before the format was checked.
    """
    if not store_exists(path):
        raise StoreMissingError(path=str(path))
    if not writable:
        _see_that_readers_are_seen(path)
    owner = lock_owner(path) if writable else None
    env: lmdb.Environment | None = None
    try:
        env = _open_env(path, writable=writable)
        try:
            _check_format(path, env)
        except StoreDamagedError:
            if not damaged:
                raise
        store = Store(path, env, writable=writable, damaged=damaged)
    except BaseException:
        if env is not None:
            env.close()
        if owner is not None:
            os.close(owner)
        raise
    store._owner = owner
    if writable:
        env.reader_check()
    return store


def _see_that_readers_are_seen(path: Path) -> None:
    """A reader would make a missing `lock.mdb` anew, of which a process that has the store open
    does not know: it would write over what the reader reads. Raises StoreDamagedError."""
    if (path / "lock.mdb").exists():
        return
    pid = owner_pid(path)
    if pid is not None:
        detail = f"its lock.mdb was removed while process {pid} has it open; end that one first"
        raise StoreDamagedError(path=str(path), detail=detail)


def _check_format(path: Path, env: lmdb.Environment) -> None:
    try:
        meta = env.open_db(b"meta", create=False)
        with env.begin() as txn:
            value = txn.get(b"format", db=meta)
        if value is None:
            raise StoreDamagedError(path=str(path), detail="it has no format record")
        record = records.decode(bytes(value), records.FormatRecord)
    except (lmdb.Error, DamagedRecordError) as error:
        raise StoreDamagedError(path=str(path), detail=str(error)) from None
    if reason := version.unreadable_reason(record):
        raise StoreFormatError(path=str(path), detail=reason, version=__version__)


def create_store(path: Path, initial: list[tuple[str, bytes, bytes]]) -> Store:
    """Make a store with the given (table, key, value) records and open it for writing.

    The directory is made with mode 0700. A store either exists whole or not at all
    (`store_exists`): `data.mdb` gets its name when all is on stable storage. LMDB would commit
    atomically, but a file that has pages and no valid meta page yet is one that it cannot open.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(path, 0o700)
    owner = lock_owner(path)
    reached("create.begin")
    try:
        _make(path, initial)
        env = _open_env(path, writable=True)
        try:
            store = Store(path, env, writable=True)
        except BaseException:
            env.close()
            raise
    except BaseException:
        os.close(owner)
        raise
    store._owner = owner
    return store


def _make(path: Path, initial: list[tuple[str, bytes, bytes]]) -> None:
    (path / _NEW).touch(mode=0o600)
    os.truncate(path / _NEW, 0)  # of a creation that was interrupted
    env = _open_env(path, writable=True, new=True)
    record = records.FormatRecord(
        version.VERSION, 0, 0, uuid.uuid4().hex, time.time_ns(), BLOCK_SIZE
    )
    try:
        reached("create.opened")
        with env.begin(write=True) as txn:
            tables = {name: env.open_db(name.encode(), txn=txn) for name in TABLES}
            for table, key, value in initial:
                txn.put(key, value, db=tables[table])
            txn.put(b"format", records.encode(record), db=tables["meta"])
        reached("create.committed")
    finally:
        env.close()
    os.replace(path / _NEW, path / "data.mdb")
    reached("create.named")
    sync_directory(path)
    (path / (_NEW + "-lock")).unlink(missing_ok=True)
