"""The first exchange with the kernel, and the one feature that pyfuse3 cannot refuse.

FUSE begins with a single INIT request, whose reply names the features that the server wants
(include/uapi/linux/fuse.h). libfuse writes it, and wants ASYNC_DIO: then the kernel does not drop a
file's pages after an asynchronous direct write has changed it, and what others read meanwhile
through the page cache stays old (xfstests generic/451). Without it such a write is done at once.

So for that one exchange a socket takes the place of `/dev/fuse`: the request is handed on as it is,
the flag is taken out of the reply, and then the descriptor is `/dev/fuse` again.

Threading: the FUSE thread, before its first request and before its second one.
"""

from __future__ import annotations

import os
import select
import socket
from struct import Struct

ASYNC_DIO = 1 << 15
_FLAGS = Struct("=I")
_AT = 16 + 12
"""Offset of the reply's flags: struct fuse_out_header, then major, minor and max_readahead."""
_MESSAGE_BYTES = 1 << 21
"""More than the largest request, which the kernel wants room for at each read."""


class Handshake:
    """Stands between libfuse and the kernel until INIT is answered."""

    def __init__(self, fuse_fd: int) -> None:
        self._fd = fuse_fd
        self._kernel = os.dup(fuse_fd)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.dup2(theirs.fileno(), fuse_fd, inheritable=False)
        theirs.close()

    def hand_on_request(self) -> None:
        """Wait for the kernel's INIT and give it to libfuse, which finds it at once."""
        try:
            select.select([self._kernel], [], [])
            self._socket.send(os.read(self._kernel, _MESSAGE_BYTES))
        except OSError:
            self._end()  # unmounted already: libfuse shall see that itself

    def hand_back_reply(self) -> None:
        """Give libfuse's reply to the kernel, without the flag."""
        if self._kernel < 0:
            return
        reply = bytearray(self._socket.recv(_MESSAGE_BYTES))
        if len(reply) >= _AT + _FLAGS.size:  # else it is an error
            flags = _FLAGS.unpack_from(reply, _AT)[0]
            _FLAGS.pack_into(reply, _AT, flags & ~ASYNC_DIO)
        os.write(self._kernel, reply)
        self._end()

    def _end(self) -> None:
        os.dup2(self._kernel, self._fd, inheritable=False)
        os.close(self._kernel)
        self._socket.close()
        self._kernel = -1
