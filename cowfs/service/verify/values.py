"""What a single record must look like, whatever the others say.

Threading: pure functions.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator

from cowfs.format import keys, records
from cowfs.types import NAME_MAX

_KINDS = {
    stat.S_IFMT(kind) >> 12
    for kind in (
        stat.S_IFIFO,
        stat.S_IFCHR,
        stat.S_IFDIR,
        stat.S_IFBLK,
        stat.S_IFREG,
        stat.S_IFLNK,
        stat.S_IFSOCK,
    )
}
_KNOWN_FLAGS = records.INODE_EXTERNAL_LINKS
_SIZE_MAX = (1 << 63) - 1
_TARGET_MAX = 4095
_XATTR_SIZE_MAX = 65536


def name_fault(name: bytes) -> str:
    """What is wrong with a name in a directory, "" when nothing is."""
    if not name:
        return "its name is empty"
    if len(name) > NAME_MAX:
        return f"its name has {len(name)} bytes"
    if b"/" in name or b"\0" in name or name in (b".", b".."):
        return f"{name!r} cannot be a name"
    return ""


def damaged_inode_key(key: bytes) -> str:
    """What is wrong with an inode key."""
    return "" if len(key) == 16 else f"its key has {len(key)} bytes, not 16"


def damaged_dirent_key(key: bytes) -> str:
    """What is wrong with a dirent key."""
    if len(key) < 18 or key[-9]:
        return "its key has no name"
    return name_fault(keys.dirent_name(key))


def damaged_link_key(key: bytes, value: bytes) -> str:
    """What is wrong with a link record."""
    if len(key) < 26 or key[-9]:
        return "its key has no name"
    if len(value) > 1:
        return f"its value has {len(value)} bytes, not 1"
    return name_fault(keys.link_parts(key)[1])


def damaged_xattr(key: bytes, value: bytes) -> tuple[str, str] | None:
    """(check, what is wrong) of an extended attribute."""
    if len(key) < 17 or key[-9]:
        return "record", "its key has no name"
    name = keys.xattr_name(key)
    if not name or len(name) > NAME_MAX or b"\0" in name:
        return "xattr-name", f"{name!r} cannot be the name of an extended attribute"
    if value and (value[0] != 1 or len(value) > 1 + _XATTR_SIZE_MAX):
        return "record", f"its value does not start with 1 or has {len(value)} bytes"
    return None


def inode_faults(record: records.InodeRecord) -> Iterator[tuple[str, str]]:
    """(check, what is wrong) for every field that cannot be so."""
    regular, link = stat.S_ISREG(record.mode), stat.S_ISLNK(record.mode)
    if records.kind_of(record.mode) not in _KINDS or record.mode >> 16:
        yield "inode-fields", f"mode {record.mode:#o} has no known type"
    if record.flags & ~_KNOWN_FLAGS:
        yield "inode-fields", f"unknown flags {record.flags:#x}"
    if record.nlink == 0:
        yield "inode-fields", "nlink is 0"
    if record.content == 0:
        yield "inode-fields", "it has no content id"
    if record.size > _SIZE_MAX:
        yield "inode-fields", f"its size is {record.size}"
    if record.base_size > (record.size if regular else 0):
        yield "inode-fields", f"base size {record.base_size} with size {record.size}"
    if record.rdev and not (stat.S_ISCHR(record.mode) or stat.S_ISBLK(record.mode)):
        yield "inode-fields", f"it is no device, but has the device number {record.rdev}"
    if link:
        size = len(record.target)
        if not 0 < size <= _TARGET_MAX or size != record.size or b"\0" in record.target:
            yield (
                "symlink-target",
                f"its target has {size} bytes, its size is {record.size}",
            )
    elif record.target:
        yield "symlink-target", "it is not a symbolic link, but has a target"
