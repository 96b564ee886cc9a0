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
begun before: the caller holds one, or knows that nobody writes. Nor are pages reused that the
transaction before the newest one needs: what each of the two meta pages leads to is whole.

store/salvage.py takes what is sound out of a file in which something is not.

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
TABLE_SIZE = _TABLE.size
_ID = Struct("<Q")
_OFFSET = Struct("<H")
_HEADER_SIZE = _HEADER.size
_NODE_SIZE = _NODE.size
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG, _SUB = 1, 2
_INTEGER_KEYS, _NO_DIRECTORY = 0x08, 0x4000
"""Flags of the free list, where LMDB keeps those of the environment, too."""
_NONE = (1 << 64) - 1
_MAX_DEPTH = 32
_KEY_MAX = 511
_EVERY = 1024
FREE_LIST, MAIN, META = "(free list)", "(tables)", "(meta)"
ALSO_FREE = "it is in use, but also free"
_BEYOND = "it lies beyond the end of the file"
_ATTEMPTS = 10

Progress = Callable[[str, int, int], None]
"""Called with "pages", how many were looked at, and how many there are."""


@dataclass(frozen=True, slots=True)
class Table:
    """LMDB's record of a table."""

    page_size: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class Meta:
    """One of the two meta pages, by its number."""

    page: int
    free: Table
    main: Table
    last_page: int
    transaction: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A finding: the table, the page (0 for the table as a whole), and what is wrong.

    low, high: records with keys from `low` on and before `high` (None: to the end) cannot be
    reached because of it; none when both are empty.
    """

    table: str
    page: int
    detail: str
    low: bytes = b""
    high: bytes | None = b""


@dataclass(frozen=True, slots=True)
class Node:
    """One record of a leaf page. place: where its value begins, or what leads to it when that is
    long (`big`); size: of the value, in bytes."""

    key: bytes
    flags: int
    place: int
    size: int

    @property
    def big(self) -> bool:
        """Whether the value has pages of its own; at `place` stands the number of the first."""
        return bool(self.flags & _BIG)


class DamagedFileError(Exception):
    """No meta page can be read: nothing is known of the file."""


def _table(data: bytes | mmap.mmap, at: int) -> Table:
    return Table(*_TABLE.unpack_from(data, at))


def read_metas(path: Path) -> list[Meta]:
    """The meta pages that make sense, newest first."""
    found = [meta for meta, _ in _both_metas(path) if meta is not None]
    found.sort(key=lambda meta: meta.transaction, reverse=True)
    return found


def worn_metas(path: Path) -> list[Meta]:
    """What the other meta pages say, if one asks only for what is needed to go on from there."""
    with open(path, "rb") as file:
        pages = [os.pread(file.fileno(), mmap.PAGESIZE, n * mmap.PAGESIZE) for n in (0, 1)]
    found = []
    for number, data in enumerate(pages):
        if len(data) == mmap.PAGESIZE and _meta(data, number)[0] is None:
            meta = _unpack_meta(data, number)
            if meta.transaction & 1 == number and meta.last_page >= 2:
                found.append(meta)
    return found


def meta_damage(path: Path) -> list[Damage]:
    """What is wrong with the meta pages. LMDB writes them in turns, one for each transaction."""
    both = _both_metas(path)
    found = [Damage(META, page, fault) for page, (_, fault) in enumerate(both) if fault]
    one, other = (meta.transaction if meta else 0 for meta, _ in both)
    if not found and abs(one - other) != 1 and one + other:
        fault = f"one is of transaction {one}, the other of {other}"
        found.append(Damage(META, 0 if one > other else 1, fault))
    return found


def _both_metas(path: Path) -> list[tuple[Meta | None, str]]:
    """For both meta pages: what it says when it makes sense, else why not."""
    with open(path, "rb") as file:
        pages = [os.pread(file.fileno(), mmap.PAGESIZE, n * mmap.PAGESIZE) for n in (0, 1)]
    return [_meta(data, number) for number, data in enumerate(pages)]


def _meta(data: bytes, number: int) -> tuple[Meta | None, str]:
    if len(data) < _HEADER_SIZE + _META.size + 2 * _TABLE.size + 2 * _ID.size:
        return None, "the file ends before it"
    page, _, flags, _, _ = _HEADER.unpack_from(data)
    at = _HEADER_SIZE
    magic, version, _, _ = _META.unpack_from(data, at)
    if (page, flags, magic, version) != (number, _META_PAGE, _MAGIC, _VERSION):
        return None, "it is no meta page"
    meta = _unpack_meta(data, number)
    free, main, last, transaction = meta.free, meta.main, meta.last_page, meta.transaction
    if free.page_size != mmap.PAGESIZE:
        return None, f"it says that pages have {free.page_size} bytes"
    if main.flags or free.flags & ~_NO_DIRECTORY != _INTEGER_KEYS:
        return None, f"its tables have the flags {free.flags:#x} and {main.flags:#x}"
    if any(root != _NONE and not 2 <= root <= last for root in (free.root, main.root)):
        return None, "its tables begin outside the pages in use"
    if transaction and transaction & 1 != number:
        return None, f"it belongs to transaction {transaction}, whose meta page is the other one"
    return meta, ""


def _unpack_meta(data: bytes, number: int) -> Meta:
    at = _HEADER_SIZE + _META.size
    free, main = _table(data, at), _table(data, at + _TABLE.size)
    at += 2 * _TABLE.size
    return Meta(number, free, main, *(_ID.unpack_from(data, at + 8 * n)[0] for n in (0, 1)))


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


def nodes_of(data: mmap.mmap, page: int) -> list[Node] | str:
    """The nodes of a page by their order, or what is wrong with one of them."""
    base, size = page * mmap.PAGESIZE, mmap.PAGESIZE
    _, _, _, lower, upper = _HEADER.unpack_from(data, base)
    nodes = []
    for index in range((lower - _HEADER_SIZE) >> 1):
        at = _OFFSET.unpack_from(data, base + _HEADER_SIZE + 2 * index)[0]
        if at < upper or at + _NODE_SIZE > size or at & 1:
            return f"node {index} lies at {at}"
        low, high, flags, length = _NODE.unpack_from(data, base + at)
        start = at + _NODE_SIZE
        if start + length > size:
            return f"the key of node {index} reaches beyond the page"
        key = data[base + start : base + start + length]
        nodes.append(Node(key, flags, base + start + length, low | high << 16))
    return nodes


class PageCheck:
    """One walk over a store's data file, from its newest meta page or a given one. `pages`: how
    many were looked at, headers only of the overflow pages. used: one bit for each page that
    belongs to a table or to the free list, or is free."""

    def __init__(
        self, path: Path, progress: Progress | None = None, meta: Meta | None = None
    ) -> None:
        self._path = path
        self.pages = 0
        self.total = 0
        self._progress = progress
        self._meta = meta
        self._data: mmap.mmap
        self._page_size = mmap.PAGESIZE
        self._last = 0
        self.used = bytearray()
        self._counts = [0, 0, 0, 0]
        self._tables: list[tuple[str, Table]] = []
        self._free: list[int] = []
        self._spare: list[tuple[str, int, int, int]] = []

    @property
    def tables(self) -> set[str]:
        """Names of the tables that were found."""
        return {name for name, _ in self._tables}

    def run(self) -> Iterator[Damage]:
        """All damage found. Raises DamagedFileError."""
        meta = self._meta or self._newest()
        if self._meta is None:
            yield from meta_damage(self._path)
        self._last = meta.last_page
        self.total = meta.last_page + 1
        with open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.used = bytearray(min(meta.last_page, size // self._page_size) // 8 + 1)
            self._data = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
            try:
                yield from self._walk_all(meta)
            finally:
                self._end()

    def _newest(self) -> Meta:
        metas = read_metas(self._path)
        while metas and metas != (again := read_metas(self._path)):
            metas = again  # a commit came in between
        if not metas:
            raise DamagedFileError("neither of its two meta pages can be read")
        return metas[0]

    def _end(self) -> None:
        self._data.close()

    def _walk_all(self, meta: Meta) -> Iterator[Damage]:
        yield from self._walk_table(MAIN, meta.main)
        for name, table in self._tables:
            yield from self._walk_table(name, table)
        yield from self._walk_table(FREE_LIST, meta.free)
        for name, page, start, count in self._spare:
            if fault := self._claim(name, start, count):
                yield Damage(name, page, f"it should have {count} pages more: {fault}")
        for page in self._free:
            if page < 2 or page > self._last:
                yield Damage(FREE_LIST, page, "a free page lies outside the file")
            elif page >> 3 >= len(self.used):
                continue  # the file may be shorter than it was
            elif self.used[page >> 3] & 1 << (page & 7):
                yield Damage(FREE_LIST, page, ALSO_FREE)
            else:
                self.used[page >> 3] |= 1 << (page & 7)

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
        if table.flags and name not in (MAIN, FREE_LIST):
            yield Damage(name, 0, f"it has the flags {table.flags:#x}")

    def _claim(self, name: str, page: int, count: int = 1) -> str:
        """Mark pages as used; what is wrong with that, "" when nothing is."""
        if page < 2 or page + count - 1 > self._last:
            return "it lies outside the pages in use"
        if (page + count) * self._page_size > len(self._data):
            return _BEYOND
        for number in range(page, page + count):
            if self.used[number >> 3] & 1 << (number & 7):
                return f"page {number} belongs to something else as well"
            self.used[number >> 3] |= 1 << (number & 7)
        self.pages += count
        if self._progress is not None and self.pages % _EVERY < count:
            self._progress("pages", self.pages, self.total)
        return ""

    def _walk(
        self, name: str, page: int, depth: int, low: bytes, high: bytes | None
    ) -> Iterator[Damage]:
        """Check a page and what is below it; its keys lie in [low, high)."""
        fault = self._claim(name, page)
        if not fault and not 0 < depth <= _MAX_DEPTH:
            fault = "it lies deeper than the table says"
        nodes: list[Node] | str = fault or self._header_fault(page, depth) or self._nodes_of(page)
        if isinstance(nodes, list):
            fault = self._order_fault(name, nodes, depth, low, high)
            nodes = fault or self._room_fault(page, nodes, depth) or nodes
        if isinstance(nodes, str):
            yield Damage(name, page, nodes, low, high)
            return
        if depth == 1:
            self._counts[1] += 1
            yield from self._leaf(name, page, nodes)
            return
        self._counts[0] += 1
        for index, node in enumerate(nodes):
            child = node.size | node.flags << 32
            upper_key = nodes[index + 1].key if index + 1 < len(nodes) else high
            yield from self._walk(name, child, depth - 1, node.key if index else low, upper_key)

    def _nodes_of(self, page: int) -> list[Node] | str:
        return nodes_of(self._data, page)

    def _header_fault(self, page: int, depth: int) -> str:
        base = page * self._page_size
        number, _, flags, lower, upper = _HEADER.unpack_from(self._data, base)
        if number != page:
            return f"it says that it is page {number}"
        if flags != (_LEAF if depth == 1 else _BRANCH):
            return f"it has the type {flags}"
        if not _HEADER_SIZE <= lower <= upper <= self._page_size or lower & 1:
            return f"its bounds are {lower} and {upper}"
        if lower == _HEADER_SIZE or (depth > 1 and lower < _HEADER_SIZE + 4):
            return "it has too few nodes"
        return ""

    def _order_fault(
        self, name: str, nodes: list[Node], depth: int, low: bytes, high: bytes | None
    ) -> str:
        """Keys ascend and lie in [low, high); those of the free list are numbers."""
        if name == FREE_LIST:
            return ""
        before: bytes | None = None
        for index, node in enumerate(nodes):
            if depth > 1 and index == 0:
                continue  # a branch's first key is never looked at
            if (before is not None and node.key <= before) or node.key < low:
                return f"the key of node {index} is out of order"
            if high is not None and node.key >= high:
                return f"the key of node {index} belongs to another page"
            before = node.key
        return ""

    def _room_fault(self, page: int, nodes: list[Node], depth: int) -> str:
        """The nodes fill a page from `upper` to its end, each from an even place."""
        upper = _HEADER.unpack_from(self._data, page * self._page_size)[4]
        taken = 0
        for node in nodes:
            value = 0 if depth > 1 else _ID.size if node.big else node.size
            taken += (_NODE_SIZE + len(node.key) + value + 1) & ~1
        if taken != self._page_size - upper:
            return f"its nodes take {taken} bytes, not {self._page_size - upper}"
        return ""

    def _leaf(self, name: str, page: int, nodes: list[Node]) -> Iterator[Damage]:
        end = (page + 1) * self._page_size
        for index, node in enumerate(nodes):
            self._counts[3] += 1
            place, fault = node.place, ""
            if place + (8 if node.big else node.size) > end or node.flags & ~(_BIG | _SUB):
                fault = f"the value of node {index} reaches beyond the page"
            elif node.big:
                number = _ID.unpack_from(self._data, place)[0]
                place, fault = self._overflow(name, number, node.size)
                fault = fault and f"the value of node {index}: {fault}"
            if not fault and name != FREE_LIST and bool(node.flags & _SUB) != (name == MAIN):
                fault = f"node {index} has the flags {node.flags}"
            if not fault and name == MAIN and node.size != _TABLE.size:
                fault = f"node {index} is no table"
            if fault:
                yield Damage(name, page, fault, node.key, node.key + b"\0")
            elif name == FREE_LIST:
                yield from self._free_pages(page, place, node.size)
            elif name == MAIN:
                table = _table(self._data, place)
                self._tables.append((node.key.decode("ascii", "replace"), table))

    def _overflow(self, name: str, page: int, size: int) -> tuple[int, str]:
        """(place of a long value, what is wrong with it).

        A value that replaced a longer one in the same transaction has more pages than it needs.
        """
        needed = pages_for(size)
        if fault := self._claim(name, page, needed):
            return 0, fault
        base = page * self._page_size
        number, _, flags, low, high = _HEADER.unpack_from(self._data, base)
        count = low | high << 16
        if number != page or flags != _OVERFLOW or count < needed:
            return 0, f"page {page} is not its overflow page"
        if count > needed:  # looked at when it is known what the others have
            self._spare.append((name, page, page + needed, count - needed))
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


def pages_for(size: int) -> int:
    """How many pages a long value takes."""
    return (_HEADER_SIZE - 1 + size) // mmap.PAGESIZE + 1


def read_table(data: mmap.mmap, place: int) -> Table:
    """The record of a table at a place of the file."""
    return _table(data, place)


def kind_of_page(data: mmap.mmap, page: int) -> str:
    """What a page says that it is: "leaf", "branch", or "" when it is neither, or another one."""
    number, _, flags, _, _ = _HEADER.unpack_from(data, page * mmap.PAGESIZE)
    return {_LEAF: "leaf", _BRANCH: "branch"}.get(flags & 0xF, "") if number == page else ""


def loose_nodes(data: mmap.mmap, page: int, *, damaged: bool) -> Iterator[Node]:
    """What may be nodes of a leaf page. Nothing is known of them but that their keys lie in the
    page; whoever uses them must check them. damaged: the header is not believed."""
    base, size = page * mmap.PAGESIZE, mmap.PAGESIZE
    lower = _HEADER.unpack_from(data, base)[3]
    end = size if damaged or lower > size else lower
    for slot in range(_HEADER_SIZE, end - 1, 2):
        at = _OFFSET.unpack_from(data, base + slot)[0]
        if at < _HEADER_SIZE or at + _NODE_SIZE > size or at & 1:
            continue
        low, high, flags, length = _NODE.unpack_from(data, base + at)
        start = at + _NODE_SIZE
        if not 0 < length <= _KEY_MAX or start + length > size or flags & ~(_BIG | _SUB):
            continue
        if flags & _BIG and start + length + _ID.size > size:
            continue
        key = data[base + start : base + start + length]
        yield Node(key, flags, base + start + length, low | high << 16)
