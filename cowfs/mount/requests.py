"""From the bytes of a request to a call of its handler.

`HANDLERS[opcode]` takes who answers (the handlers of the main view, or those of `.cowfs`), the node
id, the id of the calling thread, the request and its length. It returns an `Answer`:

- bytes, the reply after its header, or a list of pieces of it, which are valid until anything else
  is done; None, success and nothing else; an int, the errno;
- a coroutine when the answer has to wait, which returns one of these;
- `SILENT`, no reply.

An opcode that is not here is ENOSYS, which the kernel remembers: FLUSH (files are closed without a
request), ACCESS (it decides itself), POLL (files are always ready), INTERRUPT, COPY_FILE_RANGE (it
copies by itself).

Threading: the FUSE thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Coroutine
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from cowfs.mount import wire


class Silent:
    """No reply is expected."""


SILENT: Final = Silent()
Answer = bytes | list[bytes | memoryview] | int | Silent | Coroutine[Any, Any, Any] | None
_BODY = wire.REQUEST_BYTES
_AFTER_8 = _BODY + 8
_AFTER_16 = _BODY + 16
_OWNER = Struct("=II")
_OWNER_AT = 24


class Caller(NamedTuple):
    """Who makes something: a thread id, and whose it will be."""

    pid: int
    uid: int
    gid: int


class Attributes(NamedTuple):
    """What a SETATTR sets: what `valid` (`wire.SET_*`) says. Times in seconds and ns."""

    valid: int
    size: int
    atime: int
    mtime: int
    ctime: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    uid: int
    gid: int


class Handlers(Protocol):
    """Who answers: mount/operations.py, mount/browsing.py. `pid` is the calling thread's id, `fh`
    what an open answered."""

    def lookup(self, parent: int, name: bytes, pid: int) -> Answer: ...
    def reopen(self, node: int, name: bytes) -> Answer:
        """Look up what a file handle names (open_by_handle_at(2)) when the kernel has forgotten
        it: `node` itself (`.`), or the directory that a directory is in (`..`)."""

    def forget(self, node: int, count: int) -> None: ...
    def getattr(self, node: int, pid: int) -> Answer: ...
    def setattr(self, node: int, new: Attributes, pid: int) -> Answer: ...
    def readlink(self, node: int) -> Answer: ...
    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Answer: ...
    def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Answer: ...
    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Answer: ...
    def unlink(self, parent: int, name: bytes, pid: int) -> Answer: ...
    def rmdir(self, parent: int, name: bytes, pid: int) -> Answer: ...
    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, pid: int
    ) -> Answer: ...
    def link(self, node: int, new_parent: int, new_name: bytes, pid: int) -> Answer: ...
    def open(self, node: int, flags: int, caller: Caller) -> Answer: ...
    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> Answer: ...
    def tmpfile(self, parent: int, mode: int, flags: int, caller: Caller) -> Answer: ...
    def read(self, fh: int, offset: int, size: int) -> Answer: ...
    def write(self, fh: int, offset: int, data: memoryview) -> Answer:
        """`data` has other bytes after this call."""

    def fallocate(self, fh: int, offset: int, length: int, mode: int, pid: int) -> Answer: ...
    def lseek(self, fh: int, offset: int, whence: int) -> Answer: ...
    def release(self, fh: int) -> Answer: ...
    def fsync(self, fh: int) -> Answer: ...
    def fsyncdir(self) -> Answer: ...
    def statfs(self) -> Answer: ...
    def setxattr(self, node: int, name: bytes, value: bytes, pid: int) -> Answer: ...
    def getxattr(self, node: int, name: bytes) -> bytes | int:
        """At once."""

    def listxattr(self, node: int) -> list[bytes]:
        """At once."""

    def removexattr(self, node: int, name: bytes, pid: int) -> Answer: ...
    def opendir(self, node: int) -> Answer: ...
    def readdir(self, fh: int, offset: int, size: int) -> Answer: ...
    def releasedir(self, fh: int) -> Answer: ...


_OF_A_HANDLE = (b".", b"..")
Handler = Callable[[Handlers, int, int, memoryview, int], Answer]


def _caller(pid: int, request: memoryview) -> Caller:
    return Caller(pid, *_OWNER.unpack_from(request, _OWNER_AT))


def _lookup(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    name = bytes(request[_BODY : size - 1])
    if name in _OF_A_HANDLE:
        return to.reopen(node, name)
    return to.lookup(node, name, pid)


def _forget(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    to.forget(node, wire.NODE.unpack_from(request, _BODY)[0])
    return SILENT


def _batch_forget(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    """The nodes may be of different views; it is handed to the main view."""
    count, _ = wire.TWO.unpack_from(request, _BODY)
    for at in range(_AFTER_8, _AFTER_8 + count * wire.FORGET_ONE.size, wire.FORGET_ONE.size):
        to.forget(*wire.FORGET_ONE.unpack_from(request, at))
    return SILENT


def _getattr(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.getattr(node, pid)


def _setattr(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.setattr(node, Attributes(*wire.SETATTR_IN.unpack_from(request, _BODY)), pid)


def _readlink(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.readlink(node)


def _symlink(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    name, target, _ = bytes(request[_BODY:size]).split(b"\0")
    return to.symlink(node, name, target, _caller(pid, request))


def _mknod(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    mode, rdev, _, _ = wire.MKNOD_IN.unpack_from(request, _BODY)
    name = bytes(request[_AFTER_16 : size - 1])
    return to.mknod(node, name, mode, rdev, _caller(pid, request))


def _mkdir(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    mode = wire.TWO.unpack_from(request, _BODY)[0] & 0o7777 | stat.S_IFDIR
    name = bytes(request[_AFTER_8 : size - 1])
    return to.mkdir(node, name, mode, _caller(pid, request))


def _unlink(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.unlink(node, bytes(request[_BODY : size - 1]), pid)


def _rmdir(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.rmdir(node, bytes(request[_BODY : size - 1]), pid)


def _rename(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    new_parent = wire.NODE.unpack_from(request, _BODY)[0]
    name, new_name, _ = bytes(request[_AFTER_8:size]).split(b"\0")
    return to.rename(node, name, new_parent, new_name, 0, pid)


def _rename2(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    new_parent, flags, _ = wire.RENAME2_IN.unpack_from(request, _BODY)
    name, new_name, _ = bytes(request[_AFTER_16:size]).split(b"\0")
    return to.rename(node, name, new_parent, new_name, flags, pid)


def _link(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    target = wire.NODE.unpack_from(request, _BODY)[0]
    return to.link(target, node, bytes(request[_AFTER_8 : size - 1]), pid)


def _open(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    flags = wire.TWO.unpack_from(request, _BODY)[0]
    return to.open(node, flags, _caller(pid, request))


def _create(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    flags, mode, _, _ = wire.CREATE_IN.unpack_from(request, _BODY)
    name = bytes(request[_AFTER_16 : size - 1])
    return to.create(node, name, mode, flags, _caller(pid, request))


def _tmpfile(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    """As CREATE, with a name that means nothing."""
    flags, mode, _, _ = wire.CREATE_IN.unpack_from(request, _BODY)
    return to.tmpfile(node, mode, flags, _caller(pid, request))


def _read(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.read(*wire.READ_IN.unpack_from(request, _BODY))


def _write(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    fh, offset, length = wire.READ_IN.unpack_from(request, _BODY)
    start = _BODY + wire.WRITE_IN_BYTES
    return to.write(fh, offset, request[start : start + length])


def _fallocate(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    fh, offset, length, mode = wire.FALLOCATE_IN.unpack_from(request, _BODY)
    return to.fallocate(fh, offset, length, mode, pid)


def _lseek(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.lseek(*wire.LSEEK_IN.unpack_from(request, _BODY))


def _release(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.release(wire.NODE.unpack_from(request, _BODY)[0])


def _fsync(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.fsync(wire.NODE.unpack_from(request, _BODY)[0])


def _fsyncdir(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.fsyncdir()


def _statfs(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.statfs()


def _setxattr(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    length, flags = wire.TWO.unpack_from(request, _BODY)
    name, _, value = bytes(request[_AFTER_8:size]).partition(b"\0")
    if flags:
        known = to.getxattr(node, name)
        if isinstance(known, int) and known != errno.ENODATA:
            return known
        if flags & os.XATTR_CREATE and isinstance(known, bytes):
            return errno.EEXIST
        if flags & os.XATTR_REPLACE and isinstance(known, int):
            return known
    return to.setxattr(node, name, value[:length], pid)


def _getxattr(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    room = wire.TWO.unpack_from(request, _BODY)[0]
    value = to.getxattr(node, bytes(request[_AFTER_8 : size - 1]))
    return value if isinstance(value, int) else _sized(value, room)


def _listxattr(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    room = wire.TWO.unpack_from(request, _BODY)[0]
    return _sized(b"".join(name + b"\0" for name in to.listxattr(node)), room)


def _sized(value: bytes, room: int) -> Answer:
    """getxattr(2): without room, how much is needed."""
    if not room:
        return wire.TWO.pack(len(value), 0)
    return value if len(value) <= room else errno.ERANGE


def _removexattr(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.removexattr(node, bytes(request[_BODY : size - 1]), pid)


def _opendir(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.opendir(node)


def _readdir(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.readdir(*wire.READ_IN.unpack_from(request, _BODY))


def _releasedir(to: Handlers, node: int, pid: int, request: memoryview, size: int) -> Answer:
    return to.releasedir(wire.NODE.unpack_from(request, _BODY)[0])


HANDLERS: dict[int, Handler] = {
    wire.LOOKUP: _lookup,
    wire.FORGET: _forget,
    wire.GETATTR: _getattr,
    wire.SETATTR: _setattr,
    wire.READLINK: _readlink,
    wire.SYMLINK: _symlink,
    wire.MKNOD: _mknod,
    wire.MKDIR: _mkdir,
    wire.UNLINK: _unlink,
    wire.RMDIR: _rmdir,
    wire.RENAME: _rename,
    wire.RENAME2: _rename2,
    wire.LINK: _link,
    wire.OPEN: _open,
    wire.CREATE: _create,
    wire.TMPFILE: _tmpfile,
    wire.READ: _read,
    wire.WRITE: _write,
    wire.FALLOCATE: _fallocate,
    wire.LSEEK: _lseek,
    wire.RELEASE: _release,
    wire.FSYNC: _fsync,
    wire.FSYNCDIR: _fsyncdir,
    wire.STATFS: _statfs,
    wire.SETXATTR: _setxattr,
    wire.GETXATTR: _getxattr,
    wire.LISTXATTR: _listxattr,
    wire.REMOVEXATTR: _removexattr,
    wire.OPENDIR: _opendir,
    wire.READDIRPLUS: _readdir,
    wire.RELEASEDIR: _releasedir,
    wire.BATCH_FORGET: _batch_forget,
}
"""By opcode."""
