"""A file system with two files that records every write and sync, in order.

`disk` is the file under test, backed by an ordinary file. What is written to `facts` goes into the
same record, so that the order of writes, syncs and facts is known. Run as a program:
`python -m tests.crash.recorder BACKING RECORD MOUNTPOINT`; it says "ready" and ends when unmounted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyfuse3
import trio

import cowfs
from cowfs import mounts

_ROOT = Path(cowfs.__file__).resolve().parent.parent
_HEAD = struct.Struct(">cQI")
_NAMES = {b"disk": 2, b"facts": 3}
_FACTS = 3
_READY_SECONDS = 30


class Entry(NamedTuple):
    """kind: b"W" a write of `data` at `offset`, b"T" a truncation to `offset`, b"S" a sync, b"F" a
    fact."""

    kind: bytes
    offset: int
    data: bytes


def read_record(path: Path) -> list[Entry]:
    """All entries of a record."""
    text, at, out = path.read_bytes(), 0, []
    while at < len(text):
        kind, offset, length = _HEAD.unpack_from(text, at)
        at += _HEAD.size
        out.append(Entry(kind, offset, text[at : at + length]))
        at += length
    return out


@contextlib.contextmanager
def recording(place: Path, size: int = 0) -> Iterator[tuple[Path, Path]]:
    """(mount point, record) while the block runs; the disk has `size` bytes of zeros at first."""
    backing, record, mountpoint = place / "backing", place / "record", place / "recorded"
    mountpoint.mkdir()
    with open(backing, "wb") as file:
        file.truncate(size)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.recorder", str(backing), str(record), str(mountpoint)],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        if not select.select([process.stdout], [], [], _READY_SECONDS)[0]:
            raise AssertionError("the recorder does not get ready")
        assert process.stdout.readline() == b"ready\n"
        yield mountpoint, record
    finally:
        with contextlib.suppress(OSError):
            mounts.unmount(str(mountpoint), lazy=True)
        try:
            process.wait(_READY_SECONDS)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


class _Recorder(pyfuse3.Operations):
    """The handlers; one at a time, since none awaits."""

    def __init__(self, backing: int, record: int) -> None:
        super().__init__()
        self._backing = backing
        self._record = record
        self._facts = 0

    def _note(self, kind: bytes, offset: int = 0, data: bytes = b"") -> None:
        os.write(self._record, _HEAD.pack(kind, offset, len(data)) + data)

    def _attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        out = pyfuse3.EntryAttributes()
        out.st_ino = inode
        out.st_uid, out.st_gid = os.getuid(), os.getgid()
        out.attr_timeout = out.entry_timeout = 3600
        if inode == pyfuse3.ROOT_INODE:
            out.st_mode = stat.S_IFDIR | 0o700
        else:
            out.st_mode = stat.S_IFREG | 0o600
            out.st_size = self._facts if inode == _FACTS else os.fstat(self._backing).st_size
        return out

    async def getattr(
        self, inode: int, ctx: pyfuse3.RequestContext | None = None
    ) -> pyfuse3.EntryAttributes:
        return self._attributes(inode)

    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        if fields.update_size:
            os.ftruncate(self._backing, attr.st_size)
            self._note(b"T", attr.st_size)
        return self._attributes(inode)

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext | None = None
    ) -> pyfuse3.EntryAttributes:
        if name not in _NAMES:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return self._attributes(_NAMES[name])

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        # A fact must come in one piece, and LMDB maps the disk.
        return pyfuse3.FileInfo(fh=inode, direct_io=inode == _FACTS, keep_cache=inode != _FACTS)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return os.pread(self._backing, size, off)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        data = bytes(buf)
        if fh == _FACTS:
            self._facts = off + len(data)
            self._note(b"F", 0, data)
        else:
            os.pwrite(self._backing, data, off)
            self._note(b"W", off, data)
        return len(data)

    async def fsync(self, fh: int, datasync: bool) -> None:
        if fh != _FACTS:
            self._note(b"S")


def main(arguments: Sequence[str]) -> None:
    """Serve until unmounted."""
    backing = os.open(arguments[0], os.O_RDWR)
    record = os.open(arguments[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    options = {*pyfuse3.default_options, "fsname=recorded"} - {"default_permissions"}
    pyfuse3.init(_Recorder(backing, record), arguments[2], options)
    print("ready", flush=True)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=False)


if __name__ == "__main__":
    main(sys.argv[1:])
