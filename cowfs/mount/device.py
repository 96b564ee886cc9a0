"""The connection to the kernel: a descriptor of `/dev/fuse` (fuse(4)).

pyfuse3 makes the mount and removes it. Everything between is read and written here, a system call
for each request and one for its reply. pyfuse3's own request loop is not used: it starts a
coroutine for each request, copies attributes field by field, has no way to let the kernel keep the
listing of a directory, and libfuse asks for ASYNC_DIO: with that the kernel does not drop a file's
pages after an asynchronous direct write has changed it, and what others read meanwhile through the
page cache stays old (xfstests generic/451). More: docs/design/request-loop.md.

Threading: `handshake`, `receive` and `reply` belong to the FUSE thread; notifications may come from
any other one (not from the FUSE thread: the kernel may wait for a request that it must serve).
"""

from __future__ import annotations

import errno
import logging
import os
import select

from cowfs.mount import wire

log = logging.getLogger(__name__)

MAX_WRITE = 1 << 20
"""Most bytes of one WRITE or READ: 256 pages, the most without privileges."""
_PAGE = 4096
_WANTED = (
    wire.ASYNC_READ
    | wire.ATOMIC_O_TRUNC
    | wire.EXPORT_SUPPORT
    | wire.BIG_WRITES
    | wire.AUTO_INVAL_DATA
    | wire.DO_READDIRPLUS
    | wire.WRITEBACK_CACHE
    | wire.MAX_PAGES
    | wire.CACHE_SYMLINKS
)
_REQUIRED = wire.DO_READDIRPLUS | wire.WRITEBACK_CACHE
_GONE = (errno.ENODEV, errno.ECONNABORTED)
"""The mount was removed, or its connection aborted."""


class Device:
    """One connection. fd: -1 until there is a mount. waits_for_writeback: when pages were dropped
    by `invalidate_range`, what was written to them is here."""

    def __init__(self) -> None:
        self.fd = -1
        self.waits_for_writeback = False
        self._buffer = bytearray(MAX_WRITE + _PAGE)
        self._buffers = [self._buffer]
        self.request = memoryview(self._buffer)
        """The last request that was received. Its bytes are others after the next one."""

    def handshake(self) -> bool:
        """Wait for INIT and answer it. False if the mount is gone before.

        Raises RuntimeError when the kernel cannot do what is needed here.
        """
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        poller.poll()
        os.set_blocking(self.fd, False)
        size = self.receive()
        if size <= 0:
            return False
        _, opcode, unique, *_ = wire.REQUEST.unpack_from(self.request)
        if opcode != wire.INIT:
            raise RuntimeError(f"the kernel began with request {opcode} instead of INIT")
        major, minor, readahead, flags = wire.INIT_IN.unpack_from(self.request, wire.REQUEST_BYTES)
        if major != wire.MAJOR or minor < wire.MINOR or flags & _REQUIRED != _REQUIRED:
            self.fail(unique, errno.EPROTO)
            raise RuntimeError(f"this kernel's FUSE is too old ({major}.{minor})")
        self.waits_for_writeback = minor >= wire.WAITS_FOR_WRITEBACK
        answer = wire.INIT_OUT.pack(
            wire.MAJOR,
            wire.MINOR,
            readahead,
            flags & _WANTED,
            0,
            0,
            MAX_WRITE,
            1,
            MAX_WRITE // _PAGE,
            0,
            0,
        )
        self.reply(unique, answer)
        return True

    def receive(self) -> int:
        """Read a request into `request`; returns its length, 0 when there is none, -1 when there
        will be no more."""
        try:
            return os.readv(self.fd, self._buffers)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno in _GONE:
                return -1
            if error.errno == errno.ENOENT:  # it was taken back
                return 0
            raise

    def reply(self, unique: int, payload: bytes) -> None:
        """Answer a request with success."""
        try:
            os.write(self.fd, wire.REPLY.pack(16 + len(payload), 0, unique) + payload)
        except OSError as error:
            self._unheard(error)

    def reply_pieces(self, unique: int, pieces: list[bytes | memoryview]) -> None:
        """The same, without a copy of what may be large."""
        try:
            size = 16 + sum(map(len, pieces))
            os.writev(self.fd, (wire.REPLY.pack(size, 0, unique), *pieces))
        except OSError as error:
            self._unheard(error)

    def fail(self, unique: int, code: int) -> None:
        """Answer a request with an errno."""
        try:
            os.write(self.fd, wire.REPLY.pack(16, -code, unique))
        except OSError as error:
            self._unheard(error)

    def _unheard(self, error: OSError) -> None:
        """ENOENT: nobody waits for it any more. That the mount is gone the loop will see."""
        if error.errno not in (errno.ENOENT, *_GONE):
            log.error("the kernel does not take an answer", exc_info=error)

    # -- notifications ------------------------------------------------------------------------

    def invalidate_inode(self, node: int, *, attributes_only: bool = False) -> None:
        """The kernel shall ask again for attributes, and pages or the listing. Raises OSError."""
        offset = -1 if attributes_only else 0
        self._notify(wire.NOTIFY_INVAL_INODE, wire.INVAL_INODE_OUT.pack(node, offset, 0))

    def invalidate_range(self, node: int, start: int, stop: int | None) -> None:
        """The kernel shall send what was written to the bytes [start, stop) of a file, and drop its
        pages of them; stop: None for all from `start` on. Raises OSError."""
        size = 0 if stop is None else stop - start
        self._notify(wire.NOTIFY_INVAL_INODE, wire.INVAL_INODE_OUT.pack(node, start, size))

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        """The kernel shall ask again what a name is. Raises OSError."""
        head = wire.INVAL_ENTRY_OUT.pack(parent, len(name), 0)
        self._notify(wire.NOTIFY_INVAL_ENTRY, head + name + b"\0")

    def _notify(self, code: int, body: bytes) -> None:
        try:
            os.write(self.fd, wire.REPLY.pack(16 + len(body), code, 0) + body)
        except OSError as error:
            if error.errno not in _FORGOTTEN:
                raise


_FORGOTTEN = (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY)
"""The kernel does not know it (any more)."""
