"""What is really in a directory tree, found out without cowfs, and compared.

A listing has one entry for each path: type, mode, owner, size, time of change, link count, inode
number, SHA-256 or link target, and extended attributes. It is made with plain system calls of
the standard library. By hand:

    python3 scripts/_demo/listing.py DIR > before.jsonl
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

# Set by the kernel for each filesystem by rules of its own, not by whoever made the file.
_SKIPPED_XATTRS = frozenset({"security.selinux", "security.ima", "security.evm"})

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a tree.

    `mode` are the permission bits, times are in nanoseconds, `content` is the SHA-256 of a
    file or the target of a symbolic link, `xattrs` has names and values in hexadecimal, and
    `first` is the first path, in sorted order, that is a hard link to the same inode.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    rdev: int
    size: int
    mtime_ns: int
    nlink: int
    ino: int
    content: str
    xattrs: dict[str, str]
    first: str


Listing = dict[str, Entry]
"""Entries by their path below the root, which is "." itself; names that are not UTF-8 are
carried by surrogates (`os.fsdecode`)."""

ALL_FIELDS = frozenset(field.name for field in fields(Entry))
"""For two listings of one mount: nothing may differ, inode numbers included."""

PORTABLE_FIELDS = ALL_FIELDS - {"ino"}
"""For a mount and an ordinary directory, which numbers its inodes by itself."""


def take(root: Path) -> Listing:
    """Lists the tree at *root*, reading every file. Raises OSError when something is unreadable."""
    listing: Listing = {}
    firsts: dict[tuple[int, int], str] = {}
    for path, status in _walk(root):
        name = os.path.relpath(path, root)
        content = ""
        if stat.S_ISREG(status.st_mode):
            content = _sha256(path)
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        listing[name] = Entry(
            kind=_KINDS[stat.S_IFMT(status.st_mode)],
            mode=stat.S_IMODE(status.st_mode),
            uid=status.st_uid,
            gid=status.st_gid,
            rdev=status.st_rdev,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            nlink=status.st_nlink,
            ino=status.st_ino,
            content=content,
            xattrs=_xattrs(path),
            first=firsts.setdefault((status.st_dev, status.st_ino), name),
        )
    return listing


def save(listing: Listing, path: Path) -> None:
    """Writes a listing as JSON lines (ASCII), one for each path."""
    with path.open("w", encoding="ascii") as file:
        for name, entry in listing.items():
            file.write(json.dumps({"path": name, **asdict(entry)}) + "\n")


def compare(
    before: Listing,
    after: Listing,
    compared: frozenset[str],
    *,
    ignore: frozenset[str] = frozenset(),
) -> list[str]:
    """The differences between two listings, one line each; empty when there is none.

    *compared* are the fields to look at. Sizes and link counts of directories say how a
    filesystem stores them, so they are compared only together with `ino`, which is to say
    within one mount. Paths in *ignore* are left out.
    """
    lines = []
    for name in sorted((before.keys() | after.keys()) - ignore):
        old, new = before.get(name), after.get(name)
        if old is None:
            lines.append(f"{name}: should not be there")
        elif new is None:
            lines.append(f"{name}: missing")
        else:
            lines.extend(f"{name}: {text}" for text in _differences(old, new, compared))
    return lines


def _differences(old: Entry, new: Entry, compared: frozenset[str]) -> Iterator[str]:
    names = set(compared)
    if old.kind == "directory" and "ino" not in compared:
        names -= {"size", "nlink"}
    for field in fields(Entry):
        if field.name not in names:
            continue
        was, now = getattr(old, field.name), getattr(new, field.name)
        if was != now:
            if field.name == "mode":
                was, now = oct(was), oct(now)
            yield f"{field.name} is {now}, should be {was}"


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every path at and below *root*, each directory's entries in sorted order."""
    pending = [os.fspath(root)]
    while pending:
        path = pending.pop()
        status = os.lstat(path)
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            names = sorted(os.listdir(path), key=os.fsencode, reverse=True)
            pending.extend(os.path.join(path, name) for name in names)


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _xattrs(path: str) -> dict[str, str]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno == errno.ENOTSUP:  # a filesystem without them
            return {}
        raise
    return {
        name: os.getxattr(path, name, follow_symlinks=False).hex()
        for name in sorted(names)
        if name not in _SKIPPED_XATTRS
    }


def main() -> None:
    """Prints the listing of the directory given as the only argument."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} DIR")
    save(take(Path(sys.argv[1])), Path("/dev/stdout"))


if __name__ == "__main__":
    main()
