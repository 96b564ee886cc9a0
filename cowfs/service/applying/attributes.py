"""The attributes that an apply sets: owner, mode, extended attributes, times.

Threading: for the thread of the apply.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from cowfs.format import records
from cowfs.volume.base import place, read_xattrs
from cowfs.volume.posix import storable

Problem = Callable[[bytes, str], None]
"""Reports (path, what could not be set)."""
Row = tuple[bytes, int, records.InodeRecord]
"""(path, inode number, what it shall be)."""


def in_order(rows: list[Row]) -> list[Row]:
    """Files first, then directories from the deepest up, since entries change their times."""

    def depth(row: Row) -> tuple[bool, int]:
        path, _, record = row
        return stat.S_ISDIR(record.mode), 1 if path == b"." else -path.count(b"/")

    return sorted(rows, key=depth)


def are_set(
    fd: int, st: os.stat_result, record: records.InodeRecord, xattrs: dict[bytes, bytes]
) -> bool:
    """Whether something has its attributes already, but for the time of the last access."""
    return (
        (st.st_uid, st.st_gid, storable(st.st_mtime_ns)) == (record.uid, record.gid, record.mtime)
        and (stat.S_ISLNK(st.st_mode) or stat.S_IMODE(st.st_mode) == stat.S_IMODE(record.mode))
        and read_xattrs(os.fsencode(place(fd)), follow=True) == xattrs
    )


def set_one(
    fd: int,
    st: os.stat_result,
    path: bytes,
    record: records.InodeRecord,
    xattrs: dict[bytes, bytes],
    problem: Problem,
    *,
    mode: int,
) -> None:
    """Give what a descriptor (O_PATH is enough) is open on its attributes. Raises OSError.

    mode: the permissions to set, which may be others than the record's.
    """
    where = place(fd)
    if (st.st_uid, st.st_gid) != (record.uid, record.gid):
        try:
            os.chown(where, record.uid, record.gid)
        except PermissionError:
            problem(path, f"owner {record.uid}:{record.gid} cannot be set")
    _set_xattrs(path, where, xattrs, problem)
    # Of a thing of another user, in a directory in which both may work, they stay as they are.
    if not stat.S_ISLNK(record.mode):
        try:
            os.chmod(where, mode)
        except PermissionError:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
                problem(path, f"mode {mode:o} cannot be set: it is another user's")
    set_times(where, st, path, record, problem)


def set_times(
    where: str, st: os.stat_result, path: bytes, record: records.InodeRecord, problem: Problem
) -> None:
    """Set them; only its owner and root can. Raises OSError."""
    try:
        os.utime(where, ns=(record.atime, record.mtime))
    except PermissionError:
        if storable(st.st_mtime_ns) != record.mtime:
            problem(path, "its times cannot be set: it is another user's")


def _set_xattrs(path: bytes, where: str, wanted: dict[bytes, bytes], problem: Problem) -> None:
    found = read_xattrs(os.fsencode(where), follow=True)
    for name in found.keys() - wanted.keys():
        with contextlib.suppress(OSError):
            os.removexattr(where, name)
    for name, value in wanted.items():
        if found.get(name) == value:
            continue
        try:
            os.setxattr(where, name, value)
        except OSError as error:
            text = name.decode("utf-8", "surrogateescape")
            problem(path, f"attribute {text} cannot be set: {error.strerror}")
