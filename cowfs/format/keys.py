"""Keys of the store's tables (docs/format.md, "Keys").

Every versioned key ends in the inverted epoch, so that the newest version of a thing sorts first
and a lookup is one cursor seek. Integers are big-endian. A name inside a key is ended by a NUL,
which no name can contain; so all versions of one name are neighbours and no name is a prefix of
another one's versions.

Threading: pure functions.
"""

from __future__ import annotations

from struct import Struct

_Q = Struct(">Q")
_QQ = Struct(">QQ")
_QQQ = Struct(">QQQ")
_INVERT = (1 << 64) - 1

KIND_INODE = 1
KIND_DIRENT = 2

pack_id = _Q.pack
"""Key of `epoch`, `origin`, `operation`, `orphan`: one 8-byte integer."""


def unpack_id(key: bytes) -> int:
    """The integer of a key made by `pack_id`."""
    return int.from_bytes(key[:8], "big")


def inverted(epoch: int) -> bytes:
    """The 8-byte suffix that puts newer epochs first."""
    return _Q.pack(_INVERT - epoch)


def epoch_of(key: bytes) -> int:
    """The epoch of any versioned key."""
    return _INVERT - int.from_bytes(key[-8:], "big")


def inode_key(ino: int, epoch: int) -> bytes:
    """One version of an inode."""
    return _QQ.pack(ino, _INVERT - epoch)


def dirent_prefix(parent: int, name: bytes) -> bytes:
    """All versions of one directory entry start with this."""
    return _Q.pack(parent) + name + b"\0"


def dirent_key(parent: int, name: bytes, epoch: int) -> bytes:
    """One version of a directory entry."""
    return _Q.pack(parent) + name + b"\0" + _Q.pack(_INVERT - epoch)


def dirent_name(key: bytes) -> bytes:
    """The name in a dirent key or an xattr key."""
    return key[8:-9]


def link_prefix(ino: int, parent: int, name: bytes) -> bytes:
    """All versions of one link start with this."""
    return _QQ.pack(ino, parent) + name + b"\0"


def link_key(ino: int, parent: int, name: bytes, epoch: int) -> bytes:
    """Reverse of a dirent: which names an inode has."""
    return _QQ.pack(ino, parent) + name + b"\0" + _Q.pack(_INVERT - epoch)


def link_parts(key: bytes) -> tuple[int, bytes]:
    """(parent, name) of a link key."""
    return int.from_bytes(key[8:16], "big"), key[16:-9]


xattr_prefix = dirent_prefix
xattr_key = dirent_key
xattr_name = dirent_name


def extent_prefix(content: int, block: int) -> bytes:
    """All versions of one block of a content start with this."""
    return _QQ.pack(content, block)


def extent_key(content: int, block: int, epoch: int) -> bytes:
    """One version of a block of a content."""
    return _QQQ.pack(content, block, _INVERT - epoch)


def extent_block(key: bytes) -> int:
    """The block number of an extent key."""
    return int.from_bytes(key[8:16], "big")


def base_key(parent: int, name: bytes) -> bytes:
    """An entry of the base directory; not versioned, it says what lies there now."""
    return _Q.pack(parent) + name


def hardlink_key(dev: int, st_ino: int) -> bytes:
    """A base file with several links, so that all its names become one inode."""
    return _QQ.pack(dev & _INVERT, st_ino)


def change_inode_key(epoch: int, ino: int) -> bytes:
    """The epoch touched that inode (its record, content or attributes)."""
    return _Q.pack(epoch) + b"\1" + _Q.pack(ino)


def change_dirent_key(epoch: int, parent: int, name: bytes) -> bytes:
    """The epoch touched that directory entry."""
    return _Q.pack(epoch) + b"\2" + _Q.pack(parent) + name


def change_parts(key: bytes) -> tuple[int, int, bytes]:
    """(kind, ino or parent, name or b"") of a change key."""
    return key[8], int.from_bytes(key[9:17], "big"), key[17:]
