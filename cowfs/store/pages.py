"""The structure of LMDB's file, read page by page without LMDB.

LMDB trusts its file: a damaged page can end a process that looks at it. So the pages are checked
first, and tables with a damaged one are not read any further. What is checked: every page of every
table lies in the file, says its own number, has the type that its parent expects, and belongs to
nobody else; every node lies inside its page; keys ascend; the counts are right.

The layout is that of LMDB 0.9 on 64-bit machines (data version 1, little-endian here as there):

    page    0 number (8)  8 pad (2)  10 flags (2)  12 lower (2) 14 upper (2), or 12 pages (4)
            16 offsets of the nodes (2 each), up to `lower`; nodes from `upper` to the end
    node    0 low (2)  2 high (2)  4 flags (2)  6 key size (2)  8 key, then data
            leaf: low and high are the data's size; branch: with the flags, a page number
    meta    on pages 0 and 1 at 16: magic (4), version (4), address (8), map size (8), the records
            of the free list and of the main table, last page (8), transaction (8)
    table   page size (4), flags (2), depth (2), branch, leaf and overflow pages, entries, root (8
            each)

A page that the newest transaction needs is not reused as long as a read transaction lives that was
begun before: the caller holds one, or knows that nobody writes.

Threading: only reads; may run anywhere.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

_HEADER = Struct("<QHHHH")
_NODE = Struct("<HHHH")
_META = Struct("<IIQQ")
_TABLE = Struct("<IHHQQQQQ")
_ID = Struct("<Q")
_HEADER_SIZE = _HEADER.size
_NODE_SIZE = _NODE.size
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG, _SUB = 1, 2
_NONE = (1 << 64) - 1
_MAX_DEPTH = 32
_EVERY = 1024
FREE_LIST, MAIN = "(free list)", "(tables)"
_BEYOND = "it lies beyond the end of the file"
_ATTEMPTS = 10

Progress = Callable[[str, int, int], None]
"""Called with "pages", how many were looked at, and how many there are."""


@dataclass(frozen=True, slots=True)
class Table:
    """LMDB's record of a table."""

    page_size: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class Meta:
    """One of the two meta pages."""

    free: Table
    main: Table
    last_page: int
    transaction: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A finding: the table, the page (0 for the table as a whole), and what is wrong."""

    table: str
    page: int
    detail: str


class DamagedFileError(Exception):
    """No meta page can be read: nothing is known of the file."""


def _table(data: bytes | mmap.mmap, at: int) -> Table:
    pad, _, depth, branches, leaves, overflows, entries, root = _TABLE.unpack_from(data, at)
    return Table(pad, depth, branches, leaves, overflows, entries, root)


def read_metas(path: Path) -> list[Meta]:
    """The meta pages that make sense, newest first."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        found = []
        page_size = mmap.PAGESIZE
        for number in (0, 1):
            data = os.pread(file.fileno(), page_size, number * page_size)
            meta = _meta(data)
            if meta is not None and meta.free.page_size == page_size and size >= 2 * page_size:
                found.append(meta)
    found.sort(key=lambda meta: meta.transaction, reverse=True)
    return found


def _meta(data: bytes) -> Meta | None:
    if len(data) < _HEADER_SIZE + _META.size + 2 * _TABLE.size + 2 * _ID.size:
        return None
    flags = _HEADER.unpack_from(data)[2]
    at = _HEADER_SIZE
    magic, version, _, _ = _META.unpack_from(data, at)
    if magic != _MAGIC or version != _VERSION or not flags & _META_PAGE:
        return None
    at += _META.size
    free, main = _table(data, at), _table(data, at + _TABLE.size)
    at += 2 * _TABLE.size
    last, transaction = _ID.unpack_from(data, at)[0], _ID.unpack_from(data, at + 8)[0]
    return Meta(free, main, last, transaction)


def is_cut_off(path: Path) -> bool:
    """Whether a page in use lies beyond the end of the file: reading it would kill the process.

    A file that is shorter than its last page number says is rare, and may be sound (LMDB does not
    write pages that are free again before their commit): then all pages are looked at.
    """
    for _ in range(_ATTEMPTS):
        metas = read_metas(path)
        if not metas or os.stat(path).st_size >= (metas[0].last_page + 1) * mmap.PAGESIZE:
            return False
        found = any(damage.detail.endswith(_BEYOND) for damage in PageCheck(path).run())
        if read_metas(path) == metas:  # nobody committed, and reused pages, meanwhile
            return found
    return False


class PageCheck:
    """One walk over a store's data file. `pages`: how many were looked at, headers only of the
    overflow pages."""

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self._path = path
        self.pages = 0
        self.total = 0
        self._progress = progress
        self._data: mmap.mmap
        self._page_size = mmap.PAGESIZE
        self._last = 0
        self._used = bytearray()
        self._counts = [0, 0, 0, 0]
        self._tables: list[tuple[str, Table]] = []
        self._free: list[int] = []

    @property
    def tables(self) -> set[str]:
        """Names of the tables that were found."""
        return {name for name, _ in self._tables}

    def run(self) -> Iterator[Damage]:
        """All damage found. Raises DamagedFileError."""
        metas = read_metas(self._path)
        while metas and metas != (again := read_metas(self._path)):
            metas = again  # a commit came in between
        if not metas:
            raise DamagedFileError("neither of its meta pages can be read")
        meta = metas[0]
        self._last = meta.last_page
        self.total = meta.last_page + 1
        self._used = bytearray(meta.last_page // 8 + 1)
        with open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._data = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
            try:
                yield from self._walk_all(meta)
            finally:
                self._data.close()

    def _walk_all(self, meta: Meta) -> Iterator[Damage]:
        yield from self._walk_table(MAIN, meta.main)
        for name, table in self._tables:
            yield from self._walk_table(name, table)
        yield from self._walk_table(FREE_LIST, meta.free)
        for page in self._free:
            if page < 2 or page > self._last:
                yield Damage(FREE_LIST, page, "a free page lies outside the file")
            elif self._used[page >> 3] & 1 << (page & 7):
                yield Damage(FREE_LIST, page, "it is in use, but also free")
            else:
                self._used[page >> 3] |= 1 << (page & 7)

    def _walk_table(self, name: str, table: Table) -> Iterator[Damage]:
        self._counts = [0, 0, 0, 0]
        damaged = False
        if table.root != _NONE:
            for damage in self._walk(name, table.root, table.depth, b"", None):
                damaged = True
                yield damage
        found = tuple(self._counts)
        wanted = (table.branches, table.leaves, table.overflows, table.entries)
        if not damaged and found != wanted:
            kinds = "branch pages, leaf pages, overflow pages and entries"
            yield Damage(name, 0, f"it should have {wanted}, but has {found} {kinds}")

    def _claim(self, name: str, page: int, count: int = 1) -> str:
        """Mark pages as used; what is wrong with that, "" when nothing is."""
        if page < 2 or page + count - 1 > self._last:
            return "it lies outside the pages in use"
        if (page + count) * self._page_size > len(self._data):
            return _BEYOND
        for number in range(page, page + count):
            if self._used[number >> 3] & 1 << (number & 7):
                return f"page {number} belongs to something else as well"
            self._used[number >> 3] |= 1 << (number & 7)
        self.pages += count
        if self._progress is not None and self.pages % _EVERY < count:
            self._progress("pages", self.pages, self.total)
        return ""

    def _walk(
        self, name: str, page: int, depth: int, low: bytes, high: bytes | None
    ) -> Iterator[Damage]:
        """Check a page and what is below it; its keys lie in [low, high)."""
        if fault := self._claim(name, page):
            yield Damage(name, page, fault)
            return
        if not 0 < depth <= _MAX_DEPTH:
            yield Damage(name, page, "it lies deeper than the table says")
            return
        base = page * self._page_size
        number, _, flags, lower, upper = _HEADER.unpack_from(self._data, base)
        if fault := self._header_fault(page, number, flags & 0xF, lower, upper, depth):
            yield Damage(name, page, fault)
            return
        count = (lower - _HEADER_SIZE) >> 1
        nodes = []
        before = None
        for index in range(count):
            at = int.from_bytes(
                self._data[base + _HEADER_SIZE + 2 * index : base + _HEADER_SIZE + 2 * index + 2],
                "little",
            )
            if at < upper or at + _NODE_SIZE > self._page_size or at & 1:
                yield Damage(name, page, f"node {index} lies at {at}")
                return
            node = _NODE.unpack_from(self._data, base + at)
            start = at + _NODE_SIZE
            if start + node[3] > self._page_size:
                yield Damage(name, page, f"the key of node {index} reaches beyond the page")
                return
            key = self._data[base + start : base + start + node[3]]
            implicit = depth > 1 and index == 0  # a branch's first key is never looked at
            if not implicit and name != FREE_LIST:
                if (before is not None and key <= before) or key < low:
                    yield Damage(name, page, f"the key of node {index} is out of order")
                    return
                if high is not None and key >= high:
                    yield Damage(name, page, f"the key of node {index} belongs to another page")
                    return
                before = key
            nodes.append((node, key, start + node[3]))
        if depth == 1:
            self._counts[1] += 1
            yield from self._leaf(name, page, nodes)
            return
        self._counts[0] += 1
        for index, (node, key, _) in enumerate(nodes):
            child = node[0] | node[1] << 16 | node[2] << 32
            upper_key = nodes[index + 1][1] if index + 1 < count else high
            yield from self._walk(name, child, depth - 1, key if index else low, upper_key)

    def _header_fault(
        self, page: int, number: int, kind: int, lower: int, upper: int, depth: int
    ) -> str:
        if number != page:
            return f"it says that it is page {number}"
        if kind != (_LEAF if depth == 1 else _BRANCH):
            return f"it has the type {kind}"
        if not _HEADER_SIZE <= lower <= upper <= self._page_size or lower & 1:
            return f"its bounds are {lower} and {upper}"
        if lower == _HEADER_SIZE or (depth > 1 and lower < _HEADER_SIZE + 4):
            return "it has too few nodes"
        return ""

    def _leaf(
        self, name: str, page: int, nodes: list[tuple[tuple[int, int, int, int], bytes, int]]
    ) -> Iterator[Damage]:
        base = page * self._page_size
        for index, (node, key, start) in enumerate(nodes):
            self._counts[3] += 1
            size = node[0] | node[1] << 16
            kept = 8 if node[2] & _BIG else size
            if start + kept > self._page_size or node[2] & ~(_BIG | _SUB):
                yield Damage(name, page, f"the value of node {index} reaches beyond the page")
                continue
            place = base + start
            if node[2] & _BIG:
                place, fault = self._overflow(name, _ID.unpack_from(self._data, place)[0], size)
                if fault:
                    yield Damage(name, page, f"the value of node {index}: {fault}")
                    continue
            if name == FREE_LIST:
                yield from self._free_pages(page, place, size)
            elif bool(node[2] & _SUB) != (name == MAIN):
                yield Damage(name, page, f"node {index} has the flags {node[2]}")
            elif name == MAIN and size != _TABLE.size:
                yield Damage(name, page, f"node {index} is no table")
            elif name == MAIN:
                self._tables.append((key.decode("ascii", "replace"), _table(self._data, place)))

    def _overflow(self, name: str, page: int, size: int) -> tuple[int, str]:
        """(place of a long value, what is wrong with it).

        A value that replaced a longer one in the same transaction has more pages than it needs.
        """
        needed = (_HEADER_SIZE - 1 + size) // self._page_size + 1
        if fault := self._claim(name, page):
            return 0, fault
        base = page * self._page_size
        number, _, flags, low, high = _HEADER.unpack_from(self._data, base)
        count = low | high << 16
        if number != page or flags & 0xF != _OVERFLOW or count < needed:
            return 0, f"page {page} is not its overflow page"
        if count > 1 and (fault := self._claim(name, page + 1, count - 1)):
            return 0, fault
        self._counts[2] += count
        return base + _HEADER_SIZE, ""

    def _free_pages(self, page: int, place: int, size: int) -> Iterator[Damage]:
        count = _ID.unpack_from(self._data, place)[0] if size >= _ID.size else -1
        if size != (count + 1) * _ID.size:
            yield Damage(FREE_LIST, page, f"a list of {count} pages has {size} bytes")
            return
        self._free += [
            _ID.unpack_from(self._data, place + _ID.size * index)[0]
            for index in range(1, count + 1)
        ]
