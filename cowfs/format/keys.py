"""Keys of the store's tables (docs/format.md, "Keys").

Every versioned key ends in the inverted epoch, so that the newest version of a thing sorts first
and a lookup is one cursor seek. Integers are big-endian. A name inside a key is ended by a NUL,
which no name can contain; so all versions of one name are neighbours and no name is a prefix of
another one's versions.

Threading: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

_Q = Struct(">Q")
_QQ = Struct(">QQ")
_QQQ = Struct(">QQQ")
_INVERT = (1 << 64) - 1

KIND_INODE = 1
KIND_DIRENT = 2

pack_id = _Q.pack
"""Key of `epoch`, `origin`, `operation`, `orphan`, `process`, `audit`, `transcript`: one 8-byte
integer."""


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


def thing(table: str, key: bytes) -> str:
    """What a key names, for people; hexadecimal digits when it is no key of that table."""
    describe = _THINGS.get(table)
    if describe is None:
        text = key.decode("utf-8", "surrogateescape")
        return text if text.isprintable() and text else key.hex()
    shortest, form = describe
    return form(key) if len(key) >= shortest else key.hex()


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _number(key: bytes) -> str:
    return f"{unpack_id(key)}"


def _change(key: bytes) -> str:
    kind, ino, name = change_parts(key)
    return f"{ino}/{_text(name)}" if kind == KIND_DIRENT else f"{ino}"


_THINGS: dict[str, tuple[int, Callable[[bytes], str]]] = {
    "inode": (16, _number),
    "dirent": (18, lambda key: f"{unpack_id(key)}/{_text(dirent_name(key))}"),
    "link": (
        26,
        lambda key: f"{unpack_id(key)} {link_parts(key)[0]}/{_text(link_parts(key)[1])}",
    ),
    "xattr": (18, lambda key: f"{unpack_id(key)} {_text(xattr_name(key))}"),
    "extent": (24, lambda key: f"content {unpack_id(key)} block {extent_block(key)}"),
    "base": (9, lambda key: f"{unpack_id(key)}/{_text(key[8:])}"),
    "change": (17, _change),
    "block": (0, bytes.hex),
    "hardlink": (0, bytes.hex),
    "epoch": (8, _number),
    "origin": (8, _number),
    "operation": (8, _number),
    "orphan": (8, _number),
    "transcript": (8, _number),
    "piece": (16, lambda key: f"{unpack_id(key)} at {int.from_bytes(key[8:16], 'big')}"),
}
"""For each table whose keys are not text: how long a key is at least, and its words."""
