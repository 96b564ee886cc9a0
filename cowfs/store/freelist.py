"""LMDB's list of free pages, read without LMDB (store/pages.py has the layout of its file).

Of each transaction LMDB keeps the pages that it made free: they were in use in the commit before,
and are in no later one. A page is used again only by a transaction for which two things hold:

- no reader sees a commit from before the page became free, and
- neither of the two meta pages leads to such a commit: the newest one, and the one before it, which
  a crash while the next meta page is written falls back to.

So a transaction that follows the commit C takes the lists of transactions before `oldest`, which is
the smallest of C and of the commits that readers see (`mdb_find_oldest` and `mdb_page_alloc` in
LMDB's mdb.c). What is left of lists that were taken apart is listed under numbers below that.

Threading: only reads; may run anywhere. The pages of the list itself must stay: the caller has a
read transaction of that commit, or the only write transaction.
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from operator import neg
from struct import Struct

from cowfs.store.pages import Meta, Node, kind_of_page, nodes_of, pages_for

_ID = Struct("<Q")
_LONG_HEADER = 16
"""Bytes before a value that has pages of its own."""
_NONE = (1 << 64) - 1
_MAX_DEPTH = 32


class FreeListError(Exception):
    """The list is not what LMDB writes: nothing may be concluded from it."""


class FreeList:
    """The free pages of one commit that a transaction may take: those of transactions before
    `oldest`. last: the greatest page number in use, or free. held: how many others there are."""

    def __init__(self, data: mmap.mmap, meta: Meta, oldest: int) -> None:
        """Raises FreeListError."""
        self.last = meta.last_page
        self.held = 0
        self._data = data
        self._seen: set[int] = set()
        self._places: list[tuple[int, int]] = []
        root = meta.free.root
        for node in self._nodes(root, meta.free.depth) if root != _NONE else ():
            if len(node.key) != _ID.size:
                raise FreeListError(f"a key of the list has {len(node.key)} bytes")
            place, count = self._value(node)
            if _ID.unpack(node.key)[0] < oldest:
                self._places.append((place, count))
            else:
                self.held += count

    def _nodes(self, page: int, depth: int) -> Iterator[Node]:
        """The records, in the order of transactions."""
        kind = "leaf" if depth == 1 else "branch"
        if not 0 < depth < _MAX_DEPTH or self._kind(page) != kind:
            raise FreeListError(f"page {page} is no {kind} of the list")
        nodes = nodes_of(self._data, page)
        if isinstance(nodes, str):
            raise FreeListError(f"page {page}: {nodes}")
        if depth == 1:
            yield from nodes
            return
        for node in nodes:
            yield from self._nodes(node.size | node.flags << 32, depth - 1)

    def _kind(self, page: int) -> str:
        if not self._in_file(page, 1):
            raise FreeListError(f"page {page} of the list lies outside the file")
        if page in self._seen:
            raise FreeListError(f"page {page} of the list belongs to it twice")
        self._seen.add(page)
        return kind_of_page(self._data, page)

    def _in_file(self, page: int, count: int) -> bool:
        return page >= 2 and (page + count) * mmap.PAGESIZE <= len(self._data)

    def _value(self, node: Node) -> tuple[int, int]:
        """(where its first page number lies, how many there are)."""
        place = node.place
        room = mmap.PAGESIZE - place % mmap.PAGESIZE
        if room < (_ID.size if node.big else max(node.size, _ID.size)):
            raise FreeListError("a value reaches beyond its page of the list")
        if node.big:
            page = _ID.unpack_from(self._data, place)[0]
            if not self._in_file(page, pages_for(node.size)):
                raise FreeListError(f"page {page} of the list lies outside the file")
            if _ID.unpack_from(self._data, page * mmap.PAGESIZE)[0] != page:
                raise FreeListError(f"page {page} is not of the list")
            place = page * mmap.PAGESIZE + _LONG_HEADER
        count = _ID.unpack_from(self._data, place)[0]
        if node.size < (count + 1) * _ID.size:
            raise FreeListError(f"{count} pages are listed in {node.size} bytes")
        return place + _ID.size, count

    def lists(self) -> Iterator[array[int]]:
        """The lists, newest transaction first; each begins with the greatest page number.

        Raises FreeListError when one is no such list.
        """
        for place, count in reversed(self._places):
            if count:
                yield self._checked(self._read(place, count))

    def between(self, low: int, high: int) -> list[int]:
        """The free pages from `low` on and before `high`, ascending; with what lies beyond the last
        page, which no commit has. Raises FreeListError."""
        found = list(range(max(low, self.last + 1), high))
        for place, count in self._places:
            if not count:
                continue
            greatest = _ID.unpack_from(self._data, place)[0]
            least = _ID.unpack_from(self._data, place + (count - 1) * _ID.size)[0]
            if greatest < low or least >= high:
                continue
            pages = self._read(place, count)
            start = bisect_left(pages, -(high - 1), key=neg)
            stop = bisect_left(pages, -(low - 1), key=neg)
            found += pages[start:stop]
        found.sort()
        if len(set(found)) != len(found):
            raise FreeListError("a page is listed twice")
        if found and not max(low, 2) <= found[0] <= found[-1] < high:
            raise FreeListError("a list is not in order")
        return found

    def _read(self, place: int, count: int) -> array[int]:
        pages = array("Q")
        pages.frombytes(self._data[place : place + count * _ID.size])
        return pages

    def _checked(self, pages: array[int]) -> array[int]:
        after = iter(pages)
        next(after)
        if not 2 <= pages[-1] <= pages[0] <= self.last or any(
            page <= below for page, below in zip(pages, after, strict=False)
        ):
            raise FreeListError("a list is not in order")
        return pages
