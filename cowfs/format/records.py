"""Values of the store's tables (docs/format.md, "Values").

Fixed records that are read on every request (inode, dirent) are `struct`s; the small records of
history (epoch, checkpoint, operation, branch) are msgpack arrays. An empty value in a versioned
table is a *whiteout*: the thing does not exist from that epoch on.

Threading: pure functions and immutable records.
"""

from __future__ import annotations

import re
import stat
from struct import Struct
from struct import error as BadStruct  # noqa: N812
from typing import Any, NamedTuple, TypeVar

import msgspec

from cowfs.errors import DamagedRecordError

WHITEOUT = b""
EXTENT_BASE = b"\1"
"""Value of an extent that a restore of single paths gave back to the base: as if none existed."""
EXTENT_THINNED = b"\2"
"""Value of an extent whose block was given up, since only old checkpoints showed it in a volatile
path: not known any more, and no zeros."""

_INODE = Struct(">BIIIIQQqqqQQ")
INODE_FIXED = _INODE.size
_DIRENT = Struct(">QB")
_BASE = Struct(">QQBIQQQqq")
_ORIGIN = Struct(">BQ")

INODE_EXTERNAL_LINKS = 1
"""The base file had several links; some may lie outside the workspace or be unlisted yet, so
`nlink` may exceed the number of directory entries."""

ORIGIN_UNLISTED = 0
"""Directory: its base entries were not read yet. File: its blocks may still come from the base."""
ORIGIN_DONE = 1
"""Directory: listed. File: sealed, every block that existed is an extent of the store."""
ORIGIN_LOST = 2
"""File: the base file changed before its content was saved."""


class InodeRecord(NamedTuple):
    """One version of an inode. Times are nanoseconds since 1970, sizes bytes.

    `base_size`: how many leading bytes may come from the base file where no extent exists.
    `target`: where a symbolic link points to, else empty.
    """

    flags: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    atime: int
    mtime: int
    ctime: int
    content: int
    base_size: int
    target: bytes


def pack_inode(
    flags: int,
    mode: int,
    nlink: int,
    uid: int,
    gid: int,
    rdev: int,
    size: int,
    atime: int,
    mtime: int,
    ctime: int,
    content: int,
    base_size: int,
    target: bytes,
) -> bytes:
    """The value of the inode table; the arguments are the fields of `InodeRecord`."""
    fixed = _INODE.pack(
        flags, mode, nlink, uid, gid, rdev, size, atime, mtime, ctime, content, base_size
    )
    return fixed + target


def unpack_inode(value: bytes) -> InodeRecord:
    """Raises DamagedRecordError for a value that cannot be an inode."""
    try:
        return InodeRecord._make((*_INODE.unpack_from(value), value[INODE_FIXED:]))
    except BadStruct as error:
        raise DamagedRecordError(what="inode record", detail=str(error)) from None


def pack_dirent(ino: int, kind: int) -> bytes:
    """`kind` is the file type of `mode`, shifted right by 12 (DT_* of readdir(3))."""
    return _DIRENT.pack(ino, kind)


def unpack_dirent(value: bytes) -> tuple[int, int]:
    """(ino, kind). Raises DamagedRecordError."""
    try:
        ino, kind = _DIRENT.unpack(value)
    except BadStruct as error:
        raise DamagedRecordError(what="directory entry", detail=str(error)) from None
    return ino, kind


def kind_of(mode: int) -> int:
    """File type of a mode as stored in directory entries."""
    return stat.S_IFMT(mode) >> 12


class BaseRecord(NamedTuple):
    """What lay in the base directory under one name when it was last looked at.

    `ino` and `content` are ours; the rest is the fingerprint by which an outside change is seen.
    `ino` is 0 for a name that the workspace shadows with something of its own.
    """

    ino: int
    content: int
    kind: int
    mode: int
    dev: int
    st_ino: int
    size: int
    mtime: int
    ctime: int


def pack_base(record: BaseRecord) -> bytes:
    """The value of the base table."""
    return _BASE.pack(*record)


def unpack_base(value: bytes) -> BaseRecord:
    """Raises DamagedRecordError."""
    try:
        return BaseRecord(*_BASE.unpack(value))
    except BadStruct as error:
        raise DamagedRecordError(what="base record", detail=str(error)) from None


class OriginRecord(NamedTuple):
    """Where an imported directory (by ino) or content lies in the base: state, place."""

    state: int
    parent: int
    name: bytes


def pack_origin(state: int, parent: int, name: bytes) -> bytes:
    """The value of the origin table."""
    return _ORIGIN.pack(state, parent) + name


def unpack_origin(value: bytes) -> OriginRecord:
    """Raises DamagedRecordError."""
    try:
        state, parent = _ORIGIN.unpack_from(value)
    except BadStruct as error:
        raise DamagedRecordError(what="origin record", detail=str(error)) from None
    return OriginRecord(state, parent, value[_ORIGIN.size :])


class Counts(msgspec.Struct, array_like=True, frozen=True):
    """What an epoch changed, in inodes."""

    created: int = 0
    modified: int = 0
    deleted: int = 0


class EpochRecord(msgspec.Struct, array_like=True, frozen=True):
    """`run_start`: the first epoch of the unbroken run (each epoch the child of the one before)
    that this one belongs to; a lineage is followed run by run, not epoch by epoch.
    `sealed`: time of sealing, 0 while it is a head. `checkpoint`: id of the one that sealed it."""

    parent: int
    run_start: int
    branch: str
    opened: int
    sealed: int = 0
    counts: Counts = Counts()
    checkpoint: str = ""


class GitState(msgspec.Struct, array_like=True, frozen=True):
    """What git's files said at the moment of a checkpoint: HEAD's commit (hexadecimal, "" if there
    was none), the branch ("" if HEAD was detached), mtime (ns) and size of the index (0 if there
    was none): git replaces that file whenever something is staged."""

    commit: str = ""
    branch: str = ""
    index_mtime: int = 0
    index_size: int = 0


_COMMIT = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})?")
LONGEST_BRANCH = 255
"""Characters of `GitState.branch`."""


def is_possible(state: GitState) -> bool:
    """Whether a state of git can be one."""
    return bool(
        _COMMIT.fullmatch(state.commit)
        and len(state.branch) <= LONGEST_BRANCH
        and state.index_size >= 0
    )


class CheckpointRecord(msgspec.Struct, array_like=True, frozen=True):
    """`kind`: see docs/format.md, "History". `target`: for a rescue, the checkpoint whose
    restore it preceded. `time` is nanoseconds since 1970. `pinned`: never removed by itself;
    `note`: why. `session`: id of the session that it was made in (format/sessions.py). `thinned`:
    patterns of volatile paths of which it does not have all contents any more."""

    id: str
    epoch: int
    branch: str
    kind: str
    time: int
    message: str = ""
    label: str = ""
    uid: int = 0
    user: str = ""
    pid: int = 0
    command: str = ""
    target: str = ""
    counts: Counts = Counts()
    git: GitState = GitState()
    pinned: bool = False
    note: str = ""
    session: str = ""
    thinned: tuple[str, ...] = ()


class OperationRecord(msgspec.Struct, array_like=True, frozen=True):
    """One entry of the operation log: what was asked for, by whom, between which epochs."""

    seq: int
    time: int
    kind: str
    before: int
    after: int
    checkpoint: str = ""
    uid: int = 0
    user: str = ""
    pid: int = 0
    command: str = ""
    detail: str = ""


class BranchRecord(msgspec.Struct, array_like=True, frozen=True):
    """`undo`, `redo`: rescue checkpoints, the last one on top. `applied`: the epoch whose
    state the base directory shows."""

    name: str
    head: int
    undo: tuple[str, ...] = ()
    redo: tuple[str, ...] = ()
    applied: int = 0


class FormatRecord(msgspec.Struct, array_like=True, frozen=True):
    """The store's version and feature flags (docs/format.md, "Versions"). `checksum`: of the other
    fields (format/version.py makes and checks it); version 1 has none."""

    version: int
    compatible: int
    incompatible: int
    uuid: str
    created: int
    block_size: int
    checksum: int | None = None


def to_dict(record: msgspec.Struct) -> dict[str, Any]:
    """A history record as plain data with its field names, for JSON."""
    return {
        name: to_dict(value) if isinstance(value, msgspec.Struct) else value
        for name, value in msgspec.structs.asdict(record).items()
    }


_T = TypeVar("_T", bound=msgspec.Struct)
_encoder = msgspec.msgpack.Encoder()


def encode(record: msgspec.Struct) -> bytes:
    """A history record as msgpack."""
    return _encoder.encode(record)


def decode(value: bytes, kind: type[_T]) -> _T:
    """Raises DamagedRecordError when the bytes are not a record of that kind."""
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise DamagedRecordError(what=kind.__name__, detail=str(error)) from None
