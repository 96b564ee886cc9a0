"""Asynchronous direct writes by the kernel's own calls (io_setup(2) and so on)."""

from __future__ import annotations

import ctypes
import mmap
import os
from struct import Struct

_SETUP, _DESTROY, _GETEVENTS, _SUBMIT = range(206, 210)
"""Numbers of the system calls on x86-64."""
_IOCB = Struct("=QIIHhIQQqQII")
"""struct iocb of linux/aio_abi.h: data, key, flags, opcode, priority, descriptor, buffer, bytes,
offset, reserved, flags, eventfd."""
_EVENT = Struct("=QQqq")
_PWRITE = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *args: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *args))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class DirectWriter:
    """Writes the whole of a file asynchronously with O_DIRECT."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._size = fd, size
        self._buffer = mmap.mmap(-1, size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._buffer))
        self._context = ctypes.c_ulong(0)
        _call(_SETUP, ctypes.c_long(1), ctypes.byref(self._context))

    def write(self, data: bytes) -> None:
        """Write `data` at offset 0 and wait until it is done."""
        self._buffer[:] = data
        request = (0, 0, 0, _PWRITE, 0, self._fd, self._address, self._size, 0, 0, 0, 0)
        block = ctypes.create_string_buffer(_IOCB.pack(*request), _IOCB.size)
        blocks = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        assert _call(_SUBMIT, self._context, ctypes.c_long(1), blocks) == 1
        event = ctypes.create_string_buffer(_EVENT.size)
        one = ctypes.c_long(1)
        assert _call(_GETEVENTS, self._context, one, one, event, None) == 1
        assert _EVENT.unpack(event.raw)[2] == self._size

    def close(self) -> None:
        _call(_DESTROY, self._context)
