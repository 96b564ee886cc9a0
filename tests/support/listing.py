"""What is really in a directory tree, found out with system calls only, without cowfs."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import NamedTuple

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}
# Set by the kernel for each file system by rules of its own.
_SKIPPED_XATTRS = frozenset({"security.selinux", "security.ima", "security.evm"})


class Entry(NamedTuple):
    """One path.

    kind: "file", "directory", "symlink", "fifo", "socket", "character device", "block device".
    mode: the permission bits. content: SHA-256 in hexadecimal of a file, target of a symbolic
    link (surrogateescape), "" of anything else. xattrs: (name, value), sorted.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    rdev: int
    size: int
    mtime_ns: int
    nlink: int
    content: str
    xattrs: tuple[tuple[str, bytes], ...]
    ino: int


Listing = dict[str, Entry]
"""By path below the top, which is "." itself; names that are not UTF-8 by surrogateescape."""


def listing(top: str | os.PathLike[str]) -> Listing:
    """Every path of the tree at `top`, every file read. Raises OSError for what cannot be read."""
    out: Listing = {}
    pending = [""]
    root = os.fspath(top)
    while pending:
        path = pending.pop()
        full = os.path.join(root, path) if path else root
        out[path or "."] = entry = look(full)
        if entry.kind == "directory":
            pending.extend(os.path.join(path, name) for name in os.listdir(full))
    return dict(sorted(out.items()))


def look(path: str | os.PathLike[str]) -> Entry:
    """One path itself (a symbolic link is not followed)."""
    full = os.fspath(path)
    st = os.lstat(full)
    content = ""
    if stat.S_ISREG(st.st_mode):
        with open(full, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    elif stat.S_ISLNK(st.st_mode):
        content = os.readlink(full)
    return Entry(
        _KINDS[stat.S_IFMT(st.st_mode)],
        stat.S_IMODE(st.st_mode),
        st.st_uid,
        st.st_gid,
        st.st_rdev,
        st.st_size,
        st.st_mtime_ns,
        st.st_nlink,
        content,
        _xattrs(full),
        st.st_ino,
    )


def portable(entries: Listing) -> Listing:
    """A listing comparable with that of another file system.

    Each numbers its inodes by itself and has its own idea of a directory's size and link count.
    """
    return {
        path: entry._replace(ino=0, size=0, nlink=0)
        if entry.kind == "directory"
        else entry._replace(ino=0)
        for path, entry in entries.items()
    }


def difference(before: Listing, after: Listing) -> list[str]:
    """What differs, one line for each path and field; [] when the listings are equal."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            lines.append(f"{path!r}: {'should not be there' if old is None else 'is missing'}")
            continue
        lines += [
            f"{path!r}: {field} is {now!r}, should be {was!r}"
            for field, was, now in zip(Entry._fields, old, new, strict=True)
            if was != now
        ]
    return lines


def _xattrs(path: str) -> tuple[tuple[str, bytes], ...]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return ()
        raise
    return tuple(
        (name, os.getxattr(path, name, follow_symlinks=False))
        for name in sorted(names)
        if name not in _SKIPPED_XATTRS
    )
