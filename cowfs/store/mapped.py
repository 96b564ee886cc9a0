"""Stored values of blocks where they lie in LMDB's map: nothing is copied to look at one.

Who reads a file from its beginning reads values that lie one behind the other, since they were
written so; the kernel is told to load what follows (`ahead`). By itself it reads on from where a
page is missed, 128 KiB at most, so every block or two would wait for the disk.

Threading: owned by one thread.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, cast

import lmdb

from cowfs.store.env import Store

_WINDOW = 1 << 20
"""Bytes that are asked for at a time, when less than as much is known to be under way."""
_GAP = 1 << 18
"""How far from the end of one value the next one may lie: other pages may be between them."""
_MOST = 64
"""Readers that are followed at the same time."""

_libc = ctypes.CDLL(None, use_errno=True)
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_release_buffer = ctypes.pythonapi.PyBuffer_Release


class _Buffer(ctypes.Structure):
    """Py_buffer of Python's C API (part of the stable ABI since 3.11)."""

    _fields_ = (
        ("buf", ctypes.c_size_t),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_release_buffer.argtypes = (ctypes.POINTER(_Buffer),)


def _address(value: memoryview) -> int:
    found = _Buffer()
    _get_buffer(value, found, 0)
    try:
        return int(found.buf)
    finally:
        _release_buffer(found)


class MappedBlocks:
    """The table `block`, in a read transaction of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._table = cast(Any, store.tables["block"].handle)
        self._txn: lmdb.Transaction | None = None
        self._places: dict[int, tuple[int, int]] = {}

    def get(self, digest: bytes) -> memoryview | None:
        """The stored value as it is in the newest commit since `release`, not verified; valid
        until then."""
        if self._txn is None:
            self._txn = self._store.env.begin(buffers=True)
        return cast("memoryview | None", self._txn.get(digest, db=self._table))

    def ahead(self, reader: int, value: memoryview) -> None:
        """A reader, known by any number, reads a value: when it lies behind the one before, have
        the kernel load what follows."""
        start = _address(value)
        end = start + len(value)
        before, loaded = self._places.pop(reader, (0, 0))
        if not before <= start <= before + _GAP:
            loaded = 0
        elif loaded < end + _WINDOW:
            first = max(loaded, end) & -mmap.PAGESIZE
            _madvise(first, _WINDOW, mmap.MADV_WILLNEED)  # advice: errors do not matter
            loaded = first + _WINDOW
        self._places[reader] = end, loaded
        if len(self._places) > _MOST:
            del self._places[next(iter(self._places))]

    def release(self) -> None:
        """No value is used any more."""
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
