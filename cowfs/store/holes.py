"""Giving the room of free pages back to the disk while the store is in use.

LMDB never makes its file shorter. But what a page holds that is free by its rules (store/freelist)
nobody can see: LMDB writes it whole before anything leads to it. So the file gets a *hole* there
(fallocate(2), FALLOC_FL_PUNCH_HOLE): the file system frees the blocks, and nothing is moved. When
LMDB uses the page again the file system gives it blocks, as where the file grows.

A hole need not be synced. Before the file system has made it durable a crash brings the old bytes
back, in a page that is free all the same.

LMDB takes the free pages with the lowest numbers first, so holes are made from the end of the file
on; the first ones can be spared (`keep`), so that a store at work does not get back at once what it
gave.

Threading: `survey` in any thread; `punch` and `exchange` in the writer thread, in or beside whose
write transaction nobody else can use a page.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cowfs.errors import CompactHolesError
from cowfs.store.env import Store, Transaction
from cowfs.store.freelist import FreeList, FreeListError
from cowfs.store.pages import read_metas
from cowfs.store.steps import reached

_PUNCH = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, of linux/falloc.h."""
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)
_PAGE = mmap.PAGESIZE
_AT_ONCE = 4096
"""Free pages that one step looks at."""
_BUCKET_BITS = 6
_EXCHANGED = 64 << 20
_ATTEMPTS = 100

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


@dataclass(frozen=True, slots=True)
class Survey:
    """windows: (first page, page after the last one), from the end of the file on, each with about
    as many free pages as a step can do. held: bytes of pages that are free, but not by the rule
    yet: somebody reads the store as it was, or the last commit made them free."""

    windows: list[tuple[int, int]]
    held: int


class _File:
    """The data file, open beside LMDB. Its locks are on another file, so closing this one takes
    none away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fd = store.open_data()
        try:
            self.stat = os.fstat(self.fd)
            self._data = mmap.mmap(self.fd, self.stat.st_size, prot=mmap.PROT_READ)
        except BaseException:
            os.close(self.fd)
            raise
        self._step = max(self.stat.st_blksize // _PAGE, 1)

    def free_list(self, commit: int) -> FreeList:
        """The free pages of the commit with that number that may be used. Raises FreeListError."""
        metas = read_metas(Path(f"/proc/self/fd/{self.fd}"))
        meta = next((meta for meta in metas if meta.transaction == commit), None)
        if meta is None:
            raise FreeListError(f"the meta page of transaction {commit} is not there")
        return FreeList(self._data, meta, min([commit, *self._store.readers()]))

    @property
    def pages(self) -> int:
        """How long it is."""
        return -(-self.stat.st_size // _PAGE)

    def punch(self, start: int, stop: int) -> bool:
        """Make a hole of pages; whether there was none. Only whole blocks of the file system can be
        given back. Raises CompactHolesError and OSError."""
        start, stop = -(-start // self._step) * self._step, stop // self._step * self._step
        if start >= stop or not self._has_data(start, stop):
            return False
        while _fallocate(self.fd, _PUNCH, start * _PAGE, (stop - start) * _PAGE):
            code = ctypes.get_errno()
            if code in _UNSUPPORTED:
                raise CompactHolesError(path=str(self._store.path))
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))
        reached("holes.punched")
        return True

    def _has_data(self, start: int, stop: int) -> bool:
        try:
            return os.lseek(self.fd, start * _PAGE, os.SEEK_DATA) < stop * _PAGE
        except OSError as error:
            return error.errno != errno.ENXIO  # there is nothing from here to the end

    def close(self) -> None:
        self._data.close()
        os.close(self.fd)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def survey(store: Store, keep: int = 0) -> Survey:
    """Where there are free pages; the first `keep` bytes of them are spared. Raises
    FreeListError."""
    counts: Counter[int] = Counter()
    with _snapshot(store) as (file, free):
        for pages in free.lists():
            counts.update(page >> _BUCKET_BITS for page in pages)
        beyond = range(free.last + 1, file.pages)
        counts.update(page >> _BUCKET_BITS for page in beyond)
        held = free.held * _PAGE
    spared = keep // _PAGE
    for bucket in sorted(counts):
        if spared <= 0:
            break
        spared -= counts.pop(bucket)
    return Survey(list(_windows(counts)), held)


@contextlib.contextmanager
def _snapshot(store: Store) -> Iterator[tuple[_File, FreeList]]:
    """The file, and the free pages of the newest commit, while a read transaction holds them."""
    for attempt in range(_ATTEMPTS):
        with store.reading() as txn, _File(store) as file:
            try:
                free = file.free_list(txn.id())
            except FreeListError:
                if attempt + 1 == _ATTEMPTS:
                    raise
                continue  # two commits came in between, and wrote over the meta page
            yield file, free
            return


def _windows(counts: Counter[int]) -> Iterator[tuple[int, int]]:
    low = high = found = 0
    for bucket in sorted(counts, reverse=True):
        if found + counts[bucket] > _AT_ONCE and found:
            yield low, high
            found = 0
        low = bucket << _BUCKET_BITS
        if not found:
            high = bucket + 1 << _BUCKET_BITS
        found += counts[bucket]
    if found:
        yield low, high


def punch(store: Store, txn: Transaction, low: int, high: int, seconds: float) -> int:
    """Make holes of the free pages from `low` on and before `high`, from the end on, until all is
    done or the time is over; returns the page before which is still to be done.

    txn: the write transaction, in which nothing was done. Raises CompactHolesError, FreeListError
    and OSError.
    """
    until = time.monotonic() + seconds
    with _File(store) as file:
        free = file.free_list(txn.id() - 1)
        pages = free.between(low, min(high, file.pages))
        for start, stop in _runs(reversed(pages)):
            if file.punch(start, stop) and time.monotonic() > until:
                return start
    return low


def exchange(store: Store, txn: Transaction) -> bool:
    """The disk is full, and a commit needs room: give some free pages back, those that LMDB would
    take last. For it may want to use others, which are holes, or to make the file longer, since it
    needs more pages in a row. Whether there were any.

    txn and errors: as of `punch`.
    """
    with _File(store) as file:
        free = file.free_list(txn.id() - 1)
        wanted = file.stat.st_blocks * 512 - _EXCHANGED
        done = False
        for pages in free.lists():
            for start, stop in _runs(pages):
                done |= file.punch(start, stop)
            if os.fstat(file.fd).st_blocks * 512 <= wanted:
                break
        return done


def _runs(pages: Iterable[int] | array[int]) -> Iterator[tuple[int, int]]:
    """(first page, page after the last one) of neighbours among descending numbers."""
    start = stop = 0
    for page in pages:
        if page + 1 != start or not stop:
            if stop:
                yield start, stop
            stop = page + 1
        start = page
    if stop:
        yield start, stop
