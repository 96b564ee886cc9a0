"""Opening a store: the LMDB environment, its tables, its format record and its lock.

Threading: an open `Store` may be used from any thread; a read transaction belongs to the thread
that made it, and write transactions are made by the writer thread only (store/writer.py), since
LMDB's writer lock belongs to the thread that took it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import lmdb

from cowfs.errors import StoreDamagedError, StoreMissingError
from cowfs.format import checksum, records, version
from cowfs.store import condensing
from cowfs.store.files import (
    ADDED,
    DATA,
    NEW,
    TABLES,
    LmdbError,
    lock_directory,
    lock_owner,
    new_env,
    open_env,
    owner_pid,
    store_exists,
    sync_directory,
)
from cowfs.store.rewriting import Progress, silent
from cowfs.store.room import RESERVE_BYTES, SLACK_BYTES, Reserve, Room
from cowfs.store.segments import Segments
from cowfs.store.steps import reached
from cowfs.store.sums import KEPT
from cowfs.store.transaction import Cursor, Table, Transaction
from cowfs.store.upgrade import stored_version, upgrade

__all__ = [
    "ADDED",
    "TABLES",
    "Cursor",
    "LmdbError",
    "Store",
    "Table",
    "Transaction",
    "create_store",
    "lock_owner",
    "open_store",
    "owner_pid",
    "store_exists",
    "sync_directory",
]


_READERS = ["pid", "thread", "txnid"]
"""The columns of LMDB's list of readers."""


class Store:
    """An open store. Use `open_store` or `create_store`.

    quota: bytes that it may hold, 0 for no limit. reserve: what a writable one keeps back.
    segments: decode blocks.
    """

    def __init__(
        self,
        path: Path,
        env: lmdb.Environment,
        *,
        writable: bool,
        damaged: bool = False,
        creating: bool = False,
        stored_version: int = version.VERSION,
    ) -> None:
        """`damaged`: tables that are missing are left out of `tables`; those that a store may lack
        always are, but when `creating`. stored_version: of the
        format that the environment has."""
        self.path = path
        self.env = env
        self.writable = writable
        self.version = stored_version
        self._creating = creating
        self.quota = 0
        self.reserve = Reserve(path)
        self.segments = Segments()
        # A name may come to mean something else: the disk may be unmounted lazily.
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._owner: int | None = None
        self._sums: bool | None = None
        try:
            if writable:
                lock_directory(path, self._directory)
            self._main = Table("", env.open_db(None), checksum.NoChecksum(""))
            self.tables = self._all_tables(damaged)
            if stored_version == version.VERSION:
                self._open_condensed(damaged)
        except BaseException:
            os.close(self._directory)
            raise

    def _all_tables(self, damaged: bool) -> dict[str, Table]:
        tables: dict[str, Table] = {}
        for name in TABLES:
            try:
                tables[name] = self._table(name)
            except StoreDamagedError:
                if not damaged and name not in ADDED:
                    raise
        return tables

    def _open_condensed(self, damaged: bool) -> None:
        """damaged: go on when LMDB meets a damaged page, without what is condensed."""
        try:
            with self.reading() as txn:
                self.tables.update(condensing.opened(txn, self.tables))
        except lmdb.Error as error:
            if not damaged:
                raise StoreDamagedError(path=str(self.path), detail=str(error)) from None

    def _table(self, name: str) -> Table:
        try:
            handle = self.env.open_db(name.encode(), create=self._creating)
        except lmdb.NotFoundError:
            detail = f"its table {name} is missing"
            raise StoreDamagedError(path=str(self.path), detail=detail) from None
        except lmdb.Error as error:
            raise StoreDamagedError(path=str(self.path), detail=str(error)) from None
        return Table(name, handle, checksum.of_table(name, self.version))

    def begin(self, *, write: bool = False) -> Transaction:
        """A transaction; for reading, a snapshot of the last commit. Abort it soon."""
        raw = self.env.begin(write=write, buffers=False)
        return Transaction(raw, self.tables["meta"] if write and self._keeps_sums() else None)

    def forget_dead_readers(self) -> int:
        """How many processes were killed while they read. Until somebody looks, pages that such a
        one saw are not used again, and the file grows."""
        return int(self.env.reader_check())

    def readers(self) -> list[int]:
        """The commits that read transactions show now, of this process and of others."""
        header, *rows = self.env.readers().splitlines()
        if header.split() != _READERS and (rows or "no active readers" not in header):
            raise RuntimeError(f"LMDB lists its readers in another way: {header!r}")
        found = [row.split() for row in rows]
        if any(len(words) != len(_READERS) for words in found):
            raise RuntimeError("LMDB lists its readers in another way")
        return [int(commit) for _, _, commit in found if commit != "-"]

    def _keeps_sums(self) -> bool:
        """Whether there are sums of records to keep up to date; asked once."""
        if self._sums is None:
            if "meta" not in self.tables:
                return False
            with self.reading() as txn:
                found = txn.examining().get(KEPT, db=self.tables["meta"])
            self._sums = found is not None
        return self._sums

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A short read transaction."""
        txn = self.begin()
        try:
            yield txn
        finally:
            txn.abort()

    def get(self, table: str, key: bytes) -> bytes | None:
        """One value in a transaction of its own. Raises DamagedRecordError."""
        with self.reading() as txn:
            return txn.get(key, db=self.tables[table])

    def bytes_used(self) -> int:
        """Bytes of disk that the data file takes."""
        return os.stat("data.mdb", dir_fd=self._directory).st_blocks * 512

    def open_data(self) -> int:
        """A descriptor of the data file of its own."""
        return os.open("data.mdb", os.O_RDWR | os.O_CLOEXEC, dir_fd=self._directory)

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
        free = max(total - pages - 2, 0) * page
        inside = min(free, max(self.bytes_used() - (pages + 2) * page, 0))  # others are holes
        longer = max(info["map_size"] - total * page, 0)
        return Room(
            used=pages * page,
            inside=inside,
            outside=min(self.free_bytes(), longer + free - inside),
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
        return version.decode_format(value)

    def close(self) -> None:
        """Close the environment and release the owner's lock."""
        self.env.close()
        os.close(self._directory)
        if self._owner is not None:
            os.close(self._owner)
            self._owner = None

    def _take_ownership(self) -> None:
        self._owner = lock_owner(self.path)


def open_store(
    path: Path,
    *,
    writable: bool,
    damaged: bool = False,
    upgrading: bool = True,
    progress: Progress = silent,
) -> Store:
    """Open an existing store and check its format; one of an older version is upgraded before it
    is written, with `progress`.

    damaged: for `verify`, also one whose format record or some of whose tables cannot be read.
    upgrading: without it one of an older version is opened for writing as it is; for what is never
    committed. Raises StoreMissingError, StoreLockedError (writable only), StoreFormatError,
    StoreDamagedError, UpgradeFailedError, PermissionDeniedError. Nothing is written before the
    format was checked.
    """
    if not store_exists(path):
        raise StoreMissingError(path=str(path))
    if not writable:
        _see_that_readers_are_seen(path)
    owner = lock_owner(path) if writable else None
    env: lmdb.Environment | None = None
    try:
        env = open_env(path, writable=True) if writable else _open_for_reading(path)
        found = stored_version(path, env, damaged=damaged)
        if writable and upgrading and found < version.VERSION:
            env.close()
            env = None
            upgrade(path, progress)
            env, found = open_env(path, writable=True), version.VERSION
        store = Store(
            path,
            env,
            writable=writable,
            damaged=damaged,
            creating=writable and upgrading,
            stored_version=found,
        )
    except BaseException:
        if env is not None:
            env.close()
        if owner is not None:
            os.close(owner)
        raise
    store._owner = owner
    if writable:
        store.forget_dead_readers()
    return store


def _open_for_reading(path: Path) -> lmdb.Environment:
    """An upgrade may replace both files of LMDB between its two looks at them: then once more."""
    while True:
        files = _identity(path)
        env = open_env(path, writable=False)
        if _identity(path) == files:
            return env
        env.close()


def _identity(path: Path) -> list[int]:
    found = []
    for name in ("lock.mdb", DATA):
        try:
            found.append((path / name).stat().st_ino)
        except OSError:
            found.append(0)
    return found


def _see_that_readers_are_seen(path: Path) -> None:
    """A reader would make a missing `lock.mdb` anew, of which a process that has the store open
    does not know: it would write over what the reader reads. Raises StoreDamagedError."""
    if (path / "lock.mdb").exists():
        return
    pid = owner_pid(path)
    if pid is not None:
        detail = f"its lock.mdb was removed while process {pid} has it open; end that one first"
        raise StoreDamagedError(path=str(path), detail=detail)


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
        env = open_env(path, writable=True)
        try:
            store = Store(path, env, writable=True, creating=True)
        except BaseException:
            env.close()
            raise
    except BaseException:
        os.close(owner)
        raise
    store._owner = owner
    return store


def _make(path: Path, initial: list[tuple[str, bytes, bytes]]) -> None:
    env = new_env(path)
    record = version.format_record(uuid.uuid4().hex, time.time_ns())
    try:
        reached("create.opened")
        with env.begin(write=True) as raw:
            tables = {}
            for name in TABLES:
                handle = env.open_db(name.encode(), txn=raw)
                tables[name] = Table(name, handle, checksum.of_table(name, version.VERSION))
            txn = Transaction(raw)
            for table, key, value in (*initial, ("meta", b"format", records.encode(record))):
                txn.put(key, value, db=tables[table])
            txn.recount(tables)
        reached("create.committed")
    finally:
        env.close()
    os.replace(path / NEW, path / DATA)
    reached("create.named")
    sync_directory(path)
    (path / (NEW + "-lock")).unlink(missing_ok=True)
