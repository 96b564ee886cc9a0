"""The attributes that an apply sets: owner, mode, extended attributes, times.

Threading: for the thread of the apply.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from cowfs.format import records
from cowfs.volume.base import Base, read_xattrs

Problem = Callable[[bytes, str], None]
"""Reports (path, what could not be set)."""
Row = tuple[bytes, int, records.InodeRecord]
"""(path, inode number, what it shall be)."""
_CHANGE = stat.S_IWUSR | stat.S_IXUSR


def in_order(rows: list[Row]) -> list[Row]:
    """Files first, then directories from the deepest up, since entries change their times."""

    def depth(row: Row) -> tuple[bool, int]:
        path, _, record = row
        return stat.S_ISDIR(record.mode), 1 if path == b"." else -path.count(b"/")

    return sorted(rows, key=depth)


def let_change(fd: int) -> None:
    """Let its owner make and remove names in a directory of mode 0555 or the like (`fd` may be
    an O_PATH descriptor).

    The directory gets the mode that it shall have in the end, with its other attributes.
    """
    st = os.fstat(fd)
    if st.st_uid == os.geteuid() != 0 and ~st.st_mode & _CHANGE:
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(st.st_mode) | _CHANGE)


def set_one(
    base: Base,
    path: bytes,
    record: records.InodeRecord,
    xattrs: dict[bytes, bytes],
    problem: Problem,
) -> None:
    """Give what lies at a path its attributes. Raises OSError."""
    directory, _, name = path.rpartition(b"/")
    try:
        fd = base.open_directory(directory)
    except (FileNotFoundError, NotADirectoryError):
        return  # it could not be made, which was reported
    try:
        st = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if (st.st_uid, st.st_gid) != (record.uid, record.gid):
            try:
                os.chown(name, record.uid, record.gid, dir_fd=fd, follow_symlinks=False)
            except PermissionError:
                problem(path, f"owner {record.uid}:{record.gid} cannot be set")
        _set_xattrs(path, b"/proc/self/fd/%d/%s" % (fd, name), xattrs, problem)
        if not stat.S_ISLNK(record.mode):
            os.chmod(name, stat.S_IMODE(record.mode), dir_fd=fd)
        os.utime(name, ns=(record.atime, record.mtime), dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return  # as above
    finally:
        os.close(fd)


def _set_xattrs(path: bytes, place: bytes, wanted: dict[bytes, bytes], problem: Problem) -> None:
    found = read_xattrs(place)
    for name in found.keys() - wanted.keys():
        with contextlib.suppress(OSError):
            os.removexattr(place, name, follow_symlinks=False)
    for name, value in wanted.items():
        if found.get(name) == value:
            continue
        try:
            os.setxattr(place, name, value, follow_symlinks=False)
        except OSError as error:
            text = name.decode("utf-8", "surrogateescape")
            problem(path, f"attribute {text} cannot be set: {error.strerror}")
