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

_WINDOW = 1 << 21
"""How many bytes are loaded ahead."""
_STEP = 8
"""Blocks after which the reader is looked at again."""
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


class _Run:
    """One reader. following: the block that it reads next if it reads on. place: address of the
    value it was at when it was looked at last. loaded: up to which address was loaded ahead."""

    __slots__ = ("following", "loaded", "place")

    def __init__(self, following: int) -> None:
        self.following = following
        self.place = self.loaded = 0

    def look(self, place: int, size: int) -> None:
        """It is at a value of so many bytes now."""
        went, self.place = place - self.place, place
        if 0 < went <= 2 * _STEP * (size + mmap.PAGESIZE):  # other pages may lie between
            start = max(self.loaded, place) & -mmap.PAGESIZE
            self.loaded = (place + _WINDOW) & -mmap.PAGESIZE
            if start < self.loaded:
                _madvise(start, self.loaded - start, mmap.MADV_WILLNEED)  # errors do not matter
        else:
            self.loaded = 0


class MappedBlocks:
    """The table `block`, in a read transaction of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._table = cast(Any, store.tables["block"].handle)
        self._txn: lmdb.Transaction | None = None
        self._runs: dict[int, _Run] = {}

    def get(self, digest: bytes) -> memoryview | None:
        """The stored value as it is in the newest commit since `release`, not verified; valid
        until then."""
        if self._txn is None:
            self._txn = self._store.env.begin(buffers=True)
        return cast("memoryview | None", self._txn.get(digest, db=self._table))

    def ahead(self, reader: int, number: int, value: memoryview) -> None:
        """A reader, known by any number, reads a block of a file. When it has read on from block to
        block, and these lie one behind the other, have the kernel load what follows."""
        run = self._runs.get(reader)
        if run is None or run.following != number:
            self._runs.pop(reader, None)
            self._runs[reader] = _Run(number + 1)
            if len(self._runs) > _MOST:
                del self._runs[next(iter(self._runs))]
            return
        run.following = number + 1
        if not number % _STEP:
            run.look(_address(value), len(value))

    def release(self) -> None:
        """No value is used any more."""
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
