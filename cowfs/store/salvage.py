"""Taking what is sound out of a data file with damaged pages, into a new one.

LMDB is not asked: it trusts its file. Each of the two meta pages leads to a snapshot: the newest
commit, and the one before it. `Harvest` walks one of them. It takes

- the records of every leaf that is sound;
- single records of pages that are not, and of pages that nothing leads to any more (below a damaged
  branch, or of a table whose own record is damaged): which table such a record belongs to, and that
  it is whole, is told by its checksum, and of a block by its hash;
- where keys are still missing, what the snapshot before had, if that can not have changed since:
  blocks, history, and versions of epochs that were sealed by then.

A page that nothing leads to is one that was lost only if the list of free pages is sound. If it is
not, the page may be a stale one: of a key that is found with several values none is taken.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

import mmap
import os
import uuid
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from pathlib import Path

import lmdb

from cowfs.errors import DamagedRecordError
from cowfs.format import codec, keys, records
from cowfs.format.checksum import FORMAT_KEY, of_table
from cowfs.format.records import FormatRecord
from cowfs.format.version import VERSION, decode_format
from cowfs.store.env import ADDED, TABLES
from cowfs.store.pages import (
    ALSO_FREE,
    FREE_LIST,
    MAIN,
    TABLE_SIZE,
    Damage,
    DamagedFileError,
    Meta,
    Node,
    PageCheck,
    Progress,
    Table,
    kind_of_page,
    loose_nodes,
    meta_damage,
    pages_for,
    read_metas,
    read_table,
    worn_metas,
)
from cowfs.types import BLOCK_SIZE

_BATCH = 1 << 14
_BATCH_BYTES = 16 << 20
_MAP_SIZE = 1 << 40
_VERSIONED = ("inode", "dirent", "link", "xattr", "extent")
_HISTORY = ("epoch", "checkpoint", "label", "operation", "branch")
_SESSIONS = ("session", "transcript", "piece", "context")
_TOLD_ELSEWHERE = {"link", "change", "label", "hardlink", "meta"}
"""Tables that can be made of others, or of the snapshot before, without a loss."""
_CHECKSUMS = {table: of_table(table, VERSION) for table in TABLES if table != "block"}
_LONG_HEADER = 16
"""Bytes before a value that has pages of its own."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Keys of a table, from `low` on and before `high` (None: to the end), that were lost."""

    table: str
    low: bytes
    high: bytes | None

    def has(self, key: bytes) -> bool:
        """Whether a record with this key may be among what was lost."""
        return key >= self.low and (self.high is None or key < self.high)


@dataclass(frozen=True, slots=True)
class Count:
    """Records of a table. found: that were taken. wanted: that it had, None when nothing tells."""

    table: str
    found: int
    wanted: int | None

    @property
    def lost(self) -> int | None:
        """How many are missing."""
        return max(self.wanted - self.found, 0) if self.wanted is not None else None


class Harvest(PageCheck):
    """What one snapshot of a damaged file still has.

    damage: all that is wrong. gaps: keys that may be missing from what was found. behind: this
    may not be the newest commit. lost_with_commit: (table, key) of what is known of that. Use
    `close`.
    """

    def __init__(self, path: Path, meta: Meta, progress: Progress | None = None) -> None:
        super().__init__(path, progress, meta)
        self.meta: Meta = meta
        self.damage: list[Damage] = []
        self.gaps: list[Gap] = []
        self.behind = False
        self.lost_with_commit: set[tuple[str, bytes]] = set()
        self._leaves: dict[str, array[int]] = {}
        self._counts_by_table: dict[str, int] = {}
        self._bad: set[tuple[str, bytes]] = set()
        self._rescued: dict[str, dict[bytes, tuple[int, int]]] = {}
        self._unsure: set[tuple[str, bytes]] = set()
        self._unexplained = False
        self._stale: set[int] = set()

    def collect(self) -> None:
        """Walk the file and look for what the walk does not find."""
        self.damage = list(self.run())
        self._bad = {(d.table, d.low) for d in self.damage if d.high == d.low + b"\0"}
        self._rescue_tables()
        self.gaps = [*self._find_gaps(), *self._doubt_stale_leaves()]
        if self.gaps:
            self._rescue_records()
            self._close_gaps()

    def close(self) -> None:
        self._data.close()

    def _end(self) -> None:
        """The file stays mapped until `close`."""

    def _leaf(self, name: str, page: int, nodes: list[Node]) -> Iterator[Damage]:
        self._leaves.setdefault(name, array("Q")).append(page)
        self._counts_by_table[name] = self._counts_by_table.get(name, 0) + len(nodes)
        return super()._leaf(name, page, nodes)

    # -- what was found -----------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """All tables: those that a store has, and those that other programs made."""
        return list(dict.fromkeys([*TABLES, *sorted(self.tables)]))

    def records(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """The records that were found, in key order."""
        found = sorted(self._rescued.get(table, {}).items())
        done: bytes | None = None
        for key, (place, size) in merge(self._sound(table), found):
            if key != done:
                done = key
                yield key, self._data[place : place + size]

    def count(self, table: str) -> Count:
        """How many records were found."""
        bad = sum(name == table for name, _ in self._bad)
        found = self._counts_by_table.get(table, 0) - bad + len(self._rescued.get(table, {}))
        wanted = next((t.entries for name, t in self._tables if name == table), None)
        return Count(table, found, wanted)

    @property
    def format(self) -> FormatRecord | None:
        """The format record, None when it was not found."""
        stored = dict(self.records("meta")).get(FORMAT_KEY)
        try:
            return decode_format(stored or b"")
        except DamagedRecordError:
            return None

    @property
    def version(self) -> int:
        """Of the format: what its record says or, when that is lost, what others look like."""
        if (found := self.format) is not None:
            return found.version
        some = ((t, r) for t in self.names for r in self.records(t) if t != "block")
        table, (key, value) = next(some, ("", (b"", b"")))
        return 2 if table and has_checksum(table, key, value) else 1

    @property
    def whole(self) -> bool:
        """Whether nothing is missing that is not told elsewhere."""
        astray = self._stale & set(self._leaves.get(MAIN, ()))
        return not astray and all(gap.table in _TOLD_ELSEWHERE for gap in self.gaps)

    def bytes_needed(self) -> int:
        """About how much disk a new file with all that was found takes."""
        extra = sum(
            size + mmap.PAGESIZE for rows in self._rescued.values() for _, size in rows.values()
        )
        return self.pages * mmap.PAGESIZE + extra

    def _sound(self, table: str) -> Iterator[tuple[bytes, tuple[int, int]]]:
        """Key and (place, size) of the records of sound leaves."""
        for page in self._leaves.get(table, ()):
            for node in self._nodes_on(page):
                if (table, node.key) not in self._bad:
                    yield node.key, (self._place(node), node.size)

    def _place(self, node: Node) -> int:
        """Where a value begins."""
        if not node.big:
            return node.place
        page = int.from_bytes(self._data[node.place : node.place + 8], "little")
        return page * mmap.PAGESIZE + _LONG_HEADER

    # -- what the walk did not find -----------------------------------------------------------

    def _rescue_tables(self) -> None:
        """Records of tables on damaged pages: right if all of the table is."""
        for damage in self.damage:
            if damage.table != MAIN or not self._in_file(damage.page):
                continue
            for node in loose_nodes(self._data, damage.page, damaged=True):
                name = node.key.decode("ascii", "replace")
                if name in TABLES and name not in self.tables and node.size == TABLE_SIZE:
                    self._try_table(name, read_table(self._data, node.place))

    def _try_table(self, name: str, table: Table) -> None:
        before = bytes(self.used), self.pages
        if next(self._walk_table(name, table), None) is None:
            self._tables.append((name, table))
            return
        self.used[:], self.pages = before
        self._leaves.pop(name, None)
        self._counts_by_table.pop(name, None)

    def _find_gaps(self) -> Iterator[Gap]:
        for damage in self.damage:
            if damage.table not in (MAIN, FREE_LIST) and damage.low != damage.high:
                yield Gap(damage.table, damage.low, damage.high)
        whole = not any(damage.table == MAIN for damage in self.damage)
        for name in TABLES:
            if name not in self.tables and not (whole and name in ADDED):
                yield Gap(name, b"", None)

    def _doubt_stale_leaves(self) -> Iterator[Gap]:
        """Leaves that are in use, but also free: what led to them may be wrong. Their records count
        only where no page is found that is neither."""
        self._stale = {d.page for d in self.damage if d.detail == ALSO_FREE}
        if not self._stale or self.version < 2:
            return
        for table, leaves in self._leaves.items():
            doubtful = self._stale & set(leaves) if table in TABLES else set()
            for page in doubtful:
                nodes = self._nodes_on(page)
                self._counts_by_table[table] -= len(nodes)
                yield Gap(table, nodes[0].key, nodes[-1].key + b"\0")
            if doubtful:
                self._leaves[table] = array("Q", (p for p in leaves if p not in doubtful))

    def _rescue_records(self) -> None:
        damaged = {d.page for d in self.damage if d.table != FREE_LIST and self._in_file(d.page)}
        for page in sorted(damaged):
            self._rescue_page(page, damaged=True)
        last = min(self._last, len(self._data) // mmap.PAGESIZE - 1)
        others = []
        for page in range(2, last + 1):
            kind = "" if self._is_used(page) else kind_of_page(self._data, page)
            if kind == "leaf":
                self._rescue_page(page, damaged=False)
            elif not kind:
                others.append(page)
        self._unexplained |= not all(self._is_used(page) for page in others)
        for table, key in self._unsure:
            del self._rescued[table][key]
        for page in sorted(self._stale):
            if kind_of_page(self._data, page) == "leaf":
                self._rescue_page(page, damaged=True, doubtful=True)

    def _close_gaps(self) -> None:
        """Of a table of which nothing is lost. When its record is, that is so if all pages are
        accounted for."""
        sure = not self._unexplained and not self._unsure
        sure = sure and all(damage.table == MAIN for damage in self.damage)
        self.gaps = [
            gap
            for gap in self.gaps
            if (lost := self.count(gap.table).lost) or (lost is None and not sure)
        ]

    def _is_used(self, page: int) -> bool:
        return bool(self.used[page >> 3] & 1 << (page & 7))

    def _in_file(self, page: int) -> bool:
        return 2 <= page < len(self._data) // mmap.PAGESIZE

    def _rescue_page(self, page: int, *, damaged: bool, doubtful: bool = False) -> None:
        """Take single records, each for itself."""
        for node in loose_nodes(self._data, page, damaged=damaged):
            place = self._place(node)
            end = (page + 1) * mmap.PAGESIZE
            if node.big:
                end = len(self._data)
                if not self._in_file(place // mmap.PAGESIZE):
                    continue
            if place + node.size > end:
                continue
            value = self._data[place : place + node.size]
            table = table_of(node.key, value)
            self._unexplained |= not table and not damaged
            if not table and ("block", node.key) in self._bad:
                table = "block"  # its header alone may be damaged: that can be mended
            if table and any(gap.table == table and gap.has(node.key) for gap in self.gaps):
                self._take(table, node.key, place, value, doubtful=doubtful)

    def _take(self, table: str, key: bytes, place: int, value: bytes, *, doubtful: bool) -> None:
        rows = self._rescued.setdefault(table, {})
        if key in rows:
            before, size = rows[key]
            if not doubtful and self._data[before : before + size] != value:
                self._unsure.add((table, key))
            return
        rows[key] = (place, len(value))
        if place % mmap.PAGESIZE == _LONG_HEADER:
            first = place // mmap.PAGESIZE
            for page in range(first, first + pages_for(len(value))):
                if page >> 3 < len(self.used):
                    self.used[page >> 3] |= 1 << (page & 7)

    # -- the snapshot before ------------------------------------------------------------------

    def fill_from(self, before: Harvest) -> None:
        """Take what is missing from an older snapshot of the same file, if it is the same now."""
        sealed = {0}
        checksum = of_table("epoch", before.version)
        for key, stored in before.records("epoch"):
            try:
                record = records.decode(checksum.open(key, stored), records.EpochRecord)
            except DamagedRecordError:
                continue
            if record.sealed:
                sealed.add(keys.unpack_id(key))
        for gap in self.gaps:
            rows = self._rescued.setdefault(gap.table, {})
            for key, found in before._found(gap.table):
                if gap.has(key) and key not in rows and _is_settled(gap.table, key, sealed):
                    rows[key] = found
        self._close_gaps()

    def undone(self, newest: Harvest) -> set[tuple[str, bytes]]:
        """What a newer snapshot has in its sound pages and this one does not: (table, key)."""
        found = set()
        for table in self.names:
            fresh = set(newest._leaves.get(table, ())) - set(self._leaves.get(table, ()))
            stale = set(self._leaves.get(table, ())) - set(newest._leaves.get(table, ()))
            old = {self._record(node) for page in stale for node in self._nodes_on(page)}
            new = {newest._record(node) for page in fresh for node in newest._nodes_on(page)}
            found |= {(table, key) for key, _ in new - old}
        return found

    def _nodes_on(self, page: int) -> list[Node]:
        nodes = self._nodes_of(page)
        return nodes if isinstance(nodes, list) else []

    def _record(self, node: Node) -> tuple[bytes, bytes]:
        place = self._place(node)
        return node.key, self._data[place : place + node.size]

    def _found(self, table: str) -> Iterator[tuple[bytes, tuple[int, int]]]:
        return merge(self._sound(table), sorted(self._rescued.get(table, {}).items()))

    # -- the new file -------------------------------------------------------------------------

    def write(self, directory: Path, progress: Progress) -> None:
        """Make an environment in an empty directory with all that was found, and sync it. Raises
        lmdb.Error and OSError, above all when there is no room."""
        env = lmdb.open(
            os.fsencode(directory),
            map_size=_MAP_SIZE,
            max_dbs=len(self.names),
            mode=0o600,
            sync=False,
            meminit=False,
        )
        try:
            done = 0
            total = sum(self.count(table).found for table in self.names)
            for table in self.names:
                db = env.open_db(table.encode())
                for batch in self._batches(table):
                    with env.begin(write=True) as txn, txn.cursor(db=db) as cursor:
                        cursor.putmulti(batch, append=True)
                    done += len(batch)
                    progress("records", done, total)
                if table == "meta" and self.format is None and self.version == 1:
                    # Without it the store would be taken for one of this program's version.
                    new = FormatRecord(1, 0, 0, uuid.uuid4().hex, 0, BLOCK_SIZE)
                    with env.begin(write=True) as txn:
                        txn.put(FORMAT_KEY, records.encode(new), db=db)
            env.sync(True)
        finally:
            env.close()

    def _batches(self, table: str) -> Iterator[list[tuple[bytes, bytes]]]:
        batch: list[tuple[bytes, bytes]] = []
        size = 0
        for key, value in self.records(table):
            batch.append((key, value))
            size += len(value)
            if len(batch) == _BATCH or size > _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def _is_settled(table: str, key: bytes, sealed: set[int]) -> bool:
    """Whether a record can not have changed since the snapshot before, or is checked against others
    anyway. `sealed`: the epochs that were sealed then."""
    if table in _VERSIONED:
        return keys.epoch_of(key) in sealed
    if table == "change":
        return keys.unpack_id(key) in sealed
    return table in ("block", "meta") or table in _HISTORY or table in _SESSIONS


def best_harvest(path: Path, progress: Progress | None = None) -> Harvest:
    """What can be had of a damaged file: of the newest snapshot, unless something of that is lost
    and the one before is whole. A meta page that is damaged itself is believed if it leads to a
    whole snapshot. Raises DamagedFileError when no meta page leads anywhere."""
    sound, worn = read_metas(path), worn_metas(path)
    tried: list[Harvest] = []
    for meta in sorted([*sound, *worn], key=lambda meta: meta.transaction, reverse=True):
        if meta in worn and sound and abs(meta.transaction - sound[0].transaction) != 1:
            continue
        harvest = Harvest(path, meta, progress)
        harvest.collect()
        if meta in worn and (harvest.damage or not harvest.whole):
            harvest.close()
            continue
        tried.append(harvest)
        if not harvest.gaps:
            break
    if not tried:
        raise DamagedFileError("neither of its two meta pages can be read")
    newest = max(meta.transaction for meta in [*sound, *worn])
    found = next((harvest for harvest in tried if harvest.whole), tried[0])
    for other in tried:
        if other is found:
            continue
        if other.meta.transaction < found.meta.transaction:
            found.fill_from(other)
        else:
            found.lost_with_commit |= found.undone(other)
            found.damage += [damage for damage in other.damage if damage not in found.damage]
        other.close()
    found.behind = found.meta.transaction < newest or len(sound) + len(worn) < 2
    found.damage[:0] = meta_damage(path)
    return found


def table_of(key: bytes, stored: bytes) -> str:
    """The table that a record belongs to, by its checksum or hash; "" when it is damaged."""
    for table in _CHECKSUMS:
        if has_checksum(table, key, stored):
            return table
    return "block" if _is_block(key, stored) else ""


def has_checksum(table: str, key: bytes, stored: bytes) -> bool:
    """Whether a stored value belongs to this table and key, and is whole."""
    if (table, key) != ("meta", FORMAT_KEY):
        return table in _CHECKSUMS and _CHECKSUMS[table].matches(key, stored)
    try:
        return bool(decode_format(stored))
    except DamagedRecordError:
        return False


def _is_block(key: bytes, value: bytes) -> bool:
    """Of a delta, whose bytes another block is needed for, only the form is looked at."""
    if len(key) != codec.HASH_SIZE:
        return False
    if codec.delta_reference(value) is not None:
        return True
    try:
        codec.decode_block(value, key)
    except DamagedRecordError:
        return False
    return True
