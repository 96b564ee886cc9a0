"""The inode object: one file, directory or special file of a view, in memory.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import stat
from typing import Any

from cowfs.format import records
from cowfs.store.lineage import Lineage

Buffer = bytes | bytearray

NO_BLOCKS: dict[int, Buffer | None] = {}
"""What all inodes share that have nothing changed; never filled (`Inode.own_blocks`)."""
_numbers: dict[int, int] = {}
"""Modes and owners: few are different, so all inodes share one object of each."""


class Inode:
    """Fields of `InodeRecord`, and what is known only while it is in memory.

    entries: of a directory, name to `ino << 4 | kind`; None when not loaded.
    parent: of a directory, the directory it is in (0 when unknown).
    xattrs: name to value; None when not loaded.
    blocks: blocks changed since the last quiesce; a bytearray is private, bytes may be shared.
        None marks a hole.
    inflight: blocks frozen in groups that are not committed yet.
    reference: a content whose blocks resemble these (what this file replaces), for deltas; of a
        directory, the one that had its name before.
    dirty: the record must be written. pending: groups in flight that hold it.
    nlookup: references of the kernel. handles: open file handles.
    orphan_epoch: 0, or the epoch in which the last name went; the inode lives on for its handles.
    lineage: of an orphan that a restore left behind, where its old blocks are seen.
    removed: of a directory, rmdir(2) was called on it; the kernel's inode is dead for good, so a
        restore that brings the directory back gives it another `generation`.
    damaged: its record cannot be read: all but `ino` and the type are made up. Names of it can be
        removed and replaced; everything else is EIO.
    attr: slot for the mount layer's reply, dropped at every change.
    """

    __slots__ = (
        "atime",
        "attr",
        "base_size",
        "blocks",
        "content",
        "ctime",
        "damaged",
        "dirty",
        "entries",
        "flags",
        "generation",
        "gid",
        "handles",
        "inflight",
        "ino",
        "lineage",
        "mode",
        "mtime",
        "nlink",
        "nlookup",
        "orphan_epoch",
        "parent",
        "pending",
        "rdev",
        "reference",
        "removed",
        "size",
        "target",
        "uid",
        "xattrs",
    )

    def __init__(self, ino: int, record: records.InodeRecord) -> None:
        self.ino = ino
        self.nlookup = 0
        self.handles = 0
        self.pending = 0
        self.dirty = False
        self.parent = 0
        self.orphan_epoch = 0
        self.lineage: Lineage | None = None
        self.removed = False
        self.generation = 0
        self.load(record)

    def load(self, record: records.InodeRecord) -> None:
        """Take the fields of a record and forget everything derived from older ones."""
        (
            self.flags,
            self.mode,
            self.nlink,
            self.uid,
            self.gid,
            self.rdev,
            self.size,
            self.atime,
            self.mtime,
            self.ctime,
            self.content,
            self.base_size,
            self.target,
        ) = record
        share = _numbers.setdefault
        self.mode, self.uid, self.gid = (share(n, n) for n in (self.mode, self.uid, self.gid))
        if self.content == self.ino:
            self.content = self.ino
        if self.ctime == self.mtime:
            self.ctime = self.mtime
        self.entries: dict[bytes, int] | None = None
        self.xattrs: dict[bytes, bytes] | None = None
        self.blocks = NO_BLOCKS
        self.inflight = NO_BLOCKS
        self.reference = 0
        self.damaged = False
        self.attr: Any = None

    @classmethod
    def unreadable(cls, ino: int, kind: int, nlink: int) -> Inode:
        """One that is `damaged`."""
        nothing = records.InodeRecord(0, kind << 12, nlink, 0, 0, 0, 0, 0, 0, 0, ino, 0, b"")
        inode = cls(ino, nothing)
        inode.damaged = True
        return inode

    def pack(self) -> bytes:
        """The value of the inode table."""
        return records.pack_inode(
            self.flags,
            self.mode,
            self.nlink,
            self.uid,
            self.gid,
            self.rdev,
            self.size,
            self.atime,
            self.mtime,
            self.ctime,
            self.content,
            self.base_size,
            self.target,
        )

    def own_blocks(self) -> dict[int, Buffer | None]:
        """`blocks`, to be filled."""
        if self.blocks is NO_BLOCKS:
            self.blocks = {}
        return self.blocks

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def kind(self) -> int:
        """File type as in directory entries (DT_* of readdir(3))."""
        return (self.mode & 0o170000) >> 12

    @property
    def idle(self) -> bool:
        """Nothing needs the object: the store has everything and nobody refers to it."""
        return not (self.nlookup or self.handles or self.pending or self.dirty or self.blocks)

    @property
    def replaceable(self) -> bool:
        """Whether the store and the kernel's references are all that there is to know of it."""
        return not (
            self.handles
            or self.pending
            or self.dirty
            or self.blocks
            or self.inflight
            or self.orphan_epoch
            or self.removed
            or self.generation
        )

    def __repr__(self) -> str:
        return f"<Inode {self.ino} mode={self.mode:o} size={self.size} nlink={self.nlink}>"
