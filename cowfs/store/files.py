"""The files of a store: names, locks, and LMDB's environment.

A store is a directory (mode 0700): `data.mdb` and `lock.mdb` of LMDB, `owner` (an flock held by
the one process that may write, with its pid as text), `reserve` (store/room.py), and for a while
after an upgrade the copy of before (store/upgrade.py). Any number of processes may read.

Threading: stateless functions.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from pathlib import Path

import lmdb

from cowfs.errors import PermissionDeniedError, StoreDamagedError, StoreLockedError
from cowfs.store.pages import is_cut_off

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
    "process",
    "audit",
    "session",
    "transcript",
    "piece",
    "context",
    "meta",
)
ADDED = frozenset({"process", "audit", "session", "transcript", "piece", "context"})
"""Those that a store may lack until it is opened for writing: they came after version 2."""
NEW = "data.mdb.new"
"""A store in the making: nobody takes it for a store, whatever a crash leaves of it."""
DATA = "data.mdb"

LmdbError = lmdb.Error
_MAP_SIZES = (1 << 42, 1 << 40, 1 << 36, 1 << 33)
"""Address space to reserve, tried in turn: the file itself only grows as it is filled."""


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


def lock_directory(path: Path, directory: int) -> None:
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


def open_env(path: Path, *, writable: bool, new: bool = False) -> lmdb.Environment:
    """The environment of a store; with `new` that of one that is being made."""
    if is_cut_off(path / (NEW if new else DATA)):
        raise StoreDamagedError(path=str(path), detail="its file was cut off")
    last: Exception | None = None
    for map_size in _MAP_SIZES:
        try:
            return lmdb.open(
                os.fsencode(path / NEW if new else path),
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


def new_env(path: Path) -> lmdb.Environment:
    """An empty environment, as the file `NEW` of a store's directory; what an interrupted making
    left there is gone."""
    (path / NEW).touch(mode=0o600)
    os.truncate(path / NEW, 0)
    (path / (NEW + "-lock")).unlink(missing_ok=True)
    return open_env(path, writable=True, new=True)


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
