"""Writing a store's file anew, so that it takes as little room as it can.

LMDB gives pages that became free to later commits, never to the file system; and since versions of
a thing are put before older ones, its pages end up half full. A copy in the order of the keys has
neither. On the way, blocks are put together in segments (store/packing.py), and those that stay by
themselves are compressed harder than there is time for in a commit. Old versions of inodes, and
what the audit log, contexts, operations and processes tell, are condensed (store/condensing.py).
Old versions that no file has any more, and that only deltas needed, are left out with the deltas.
Nothing else changes: every other record is copied as it is, byte by byte.

Threading: everything runs in the calling thread, which takes the store's lock.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby, tee, zip_longest
from operator import itemgetter
from pathlib import Path

import lmdb

from cowfs.errors import CompactFailedError, DamagedRecordError
from cowfs.format import checksum, codec, records, version
from cowfs.format.condensed import DICTIONARY, TWIN
from cowfs.format.segment import encode_part, encode_segment, is_segment, part_of
from cowfs.store import condensing
from cowfs.store.condensing import Condensing
from cowfs.store.files import DATA, NEW, TABLES, lock_owner, new_env, open_env, sync_directory
from cowfs.store.packing import Packer, Packing
from cowfs.store.rewriting import (
    FAILURES,
    DifferentError,
    Meter,
    Progress,
    Row,
    batches,
    name_data,
    name_locks,
    reason,
    refuse_damaged_pages,
    see_that_there_is_room,
    sync_new,
    take_back,
)
from cowfs.store.room import SLACK_BYTES
from cowfs.store.segments import Parts
from cowfs.store.steps import reached
from cowfs.store.sums import PREFIX, pack, unpack
from cowfs.store.transaction import Table, Transaction
from cowfs.store.upgrade import stored_version

_BLOCKS, _META = b"block", b"meta"


@dataclass(frozen=True, slots=True)
class Compacted:
    """Bytes of disk that the store's file took before and takes now; the same when nothing was to
    be gained, and nothing was done then."""

    before: int
    after: int


def compact(path: Path, progress: Progress) -> Compacted:
    """Compact the store at `path`, which nobody has open for writing; readers go on with the old
    file.

    Raises StoreLockedError, StoreFormatError (of a newer version), StoreDamagedError (of damaged
    pages) and CompactFailedError; the store is as it was then.
    """
    owner = lock_owner(path)
    try:
        return _compact(path, progress)
    finally:
        os.close(owner)


def _compact(path: Path, progress: Progress) -> Compacted:
    reached("compact.begin")
    before = _on_disk(path, DATA)
    try:
        refuse_damaged_pages(path, progress)
        _make(path, progress)
        after = _on_disk(path, NEW)
        if after >= before:
            take_back(path)
            return Compacted(before, before)
        _exchange(path)
    except BaseException as error:
        take_back(path)
        if isinstance(error, FAILURES):
            raise CompactFailedError(path=str(path), detail=reason(error)) from None
        raise
    return Compacted(before, after)


def _on_disk(path: Path, name: str) -> int:
    return os.stat(path / name).st_blocks * 512


def _make(path: Path, progress: Progress) -> None:
    """Copy everything, compare, and bring the copy to stable storage."""
    old = open_env(path, writable=False)
    try:
        stored_version(path, old, damaged=False)
        see_that_there_is_room(path, _bytes_used(old, _names(old)) + SLACK_BYTES)
        new = new_env(path)
        try:
            reached("compact.opened")
            with closing(_Compaction(old, new, progress)) as compaction:
                compaction.copy()
                reached("compact.copied")
                compaction.compare()
                reached("compact.compared")
            new.sync(True)
        finally:
            new.close()
    finally:
        old.close()
    sync_new(path)


def _names(env: lmdb.Environment) -> list[bytes]:
    """All tables, also those that this version does not know."""
    with env.begin() as txn, txn.cursor(db=env.open_db(None)) as cursor:
        return [bytes(key) for key, _ in cursor]


def _bytes_used(env: lmdb.Environment, names: list[bytes]) -> int:
    handles = [env.open_db(name, create=False) for name in names]
    with env.begin() as txn:
        stats = [txn.stat(handle) for handle in handles]
    pages = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
    return int(pages * env.stat()["psize"])


def _entries(env: lmdb.Environment, names: list[bytes]) -> int:
    handles = [env.open_db(name, create=False) for name in names]
    with env.begin() as txn:
        return sum(txn.stat(handle)["entries"] for handle in handles)


class _Compaction:
    """One copy. `packing`: what is decided about blocks."""

    def __init__(self, old: lmdb.Environment, new: lmdb.Environment, progress: Progress) -> None:
        self._old, self._new = old, new
        self._progress = progress
        self._names = _names(old)
        tables = {name: self._table(name) for name in TABLES if name.encode() in self._names}
        self._txn = Transaction(old.begin())
        tables.update(condensing.opened(self._txn, tables))
        stored = self._txn.get(checksum.FORMAT_KEY, db=tables["meta"])
        self._version = version.decode_format(stored or b"").version
        self._packer = Packer(self._txn, tables, progress)
        self._packing = Packing({}, {}, set(), set())
        self._condensing: dict[str, Condensing] = {}
        self._sums: dict[bytes, int] = {}
        if self._version == version.VERSION:
            self._packing = self._packer.plan()
            self._condensing = condensing.plan(self._txn, tables)

    def _table(self, name: str) -> Table:
        handle = self._old.open_db(name.encode(), create=False)
        return Table(name, handle, checksum.of_table(name, version.VERSION))

    def copy(self) -> None:
        """Everything."""
        meter = Meter(self._progress, "copying the store", _entries(self._old, self._names))
        for name in sorted(self._names, key=lambda name: name == _META):  # it has sums of others
            target = self._new.open_db(name)
            rows = meter.count(_rows(self._old, name))
            if name == _BLOCKS:
                rows = self._blocks(rows)
            elif name == _META:
                rows = self._meta(rows)
            elif name.decode() in self._condensing:
                rows = self._summed(name, rows)
            for batch in batches(rows):
                _append(self._new, target, batch)

    def _blocks(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The blocks, and segments where they belong among them."""
        parts, segments, dropped, spent = self._packing
        fresh = ((digest, b"") for digest in sorted(segments))
        for digest, same in groupby(heapq.merge(rows, fresh), itemgetter(0)):
            value = max(value for _, value in same)
            if digest in segments:
                if not _is_block(digest, value):  # else it was made by a compaction before
                    value = encode_segment(self._packer.segment(segments[digest]))
            elif digest in spent or (digest in dropped and is_segment(value)):
                continue
            elif (part := parts.get(digest)) is not None:
                value = encode_part(part)
            else:
                value = self._alone(digest, value)
            yield digest, value

    def _alone(self, digest: bytes, value: bytes) -> bytes:
        """A block that is in no segment, smaller if it can be; a damaged one as it is."""
        try:
            if part_of(value) is not None:
                value = codec.encode_block(self._packer.read(digest))
            return value if codec.delta_reference(value) else codec.repack(value, digest)
        except DamagedRecordError:
            return value

    def _summed(self, name: bytes, rows: Iterator[Row]) -> Iterator[Row]:
        """The rows of a table condensed, while it is noted how the sum of checksums changes."""
        rows, before = tee(rows)
        made = self._condensing[name.decode()].rows(rows)
        for (_, was), (key, now) in zip(before, made, strict=True):
            change = int.from_bytes(now[-4:], "big") - int.from_bytes(was[-4:], "big")
            self._sums[name] = self._sums.get(name, 0) + change
            yield key, now

    def _meta(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The records of `meta`: with the dictionaries, sums and features of the new store."""
        if self._version != version.VERSION:
            yield from rows
            return
        seal = checksum.of_table("meta", version.VERSION).seal
        fresh = {
            prefix + name.encode(): condensing.dictionary
            for name, condensing in self._condensing.items()
            if condensing.dictionary is not None
            for prefix in (DICTIONARY, TWIN)
        }
        there = ((key, value) for key, value in rows if key not in fresh)
        added = ((key, seal(key, value)) for key, value in sorted(fresh.items()))
        for key, stored in heapq.merge(there, added):
            table = key[len(PREFIX) :] if key.startswith(PREFIX) else b""
            if key == checksum.FORMAT_KEY:
                stored = self._format(stored)
            elif table in self._sums and (told := unpack(stored[:-4])) is not None:
                stored = seal(key, pack(told[0], told[1] + self._sums[table]))
            yield key, stored

    def _format(self, value: bytes) -> bytes:
        record = version.decode_format(value)
        used = {version.SEGMENTS: self._has_parts(), version.CONDENSED: bool(self._condensing)}
        for bit, is_used in used.items():
            change = version.with_feature if is_used else version.without_feature
            record = change(record, bit)
        return records.encode(record)

    def _has_parts(self) -> bool:
        if self._packing.parts:
            return True
        return any(part_of(value) is not None for _, value in _rows(self._old, _BLOCKS))

    def compare(self) -> None:
        """A second pass: every record is there and is what it was, or a block with the same bytes,
        or a block that is spent; and there is nothing else but segments. Raises DifferentError."""
        meter = Meter(self._progress, "comparing the copy", _entries(self._new, self._names))
        if _names(self._new) != self._names:
            raise DifferentError("the copy has other tables")
        for name in self._names:
            old, new = _rows(self._old, name), meter.count(_rows(self._new, name))
            same = self._same_blocks(old, new) if name == _BLOCKS else self._same(name, old, new)
            if not same:
                raise DifferentError(f"the copy of the table {name.decode()} is not the same")

    def _same(self, name: bytes, old: Iterable[Row], new: Iterable[Row]) -> bool:
        if name == _META:
            old = self._meta(old)
        form = self._condensing.get(name.decode())
        if form is None:
            return all(was == now for was, now in zip_longest(old, new))
        for was, now in zip_longest(old, new):
            if was is None or now is None or was[0] != now[0]:
                return False
            if form.usual(form.before, *was) != form.usual(form.after, *now):
                return False
        return True

    def _same_blocks(self, old: Iterable[Row], new: Iterable[Row]) -> bool:
        """Of a part, what its segment has is compared with its hash."""
        _, segments, dropped, spent = self._packing
        found = Parts()
        was = (
            (digest, value)
            for digest, value in old
            if digest not in spent and not (digest in dropped and is_segment(value))
        )
        before: Row | None = next(was, None)
        for digest, value in new:
            if before is not None and before[0] == digest:
                kept, before = before[1], next(was, None)
                if value == kept:
                    continue
            elif digest not in segments:
                return False
            if (part := part_of(value)) is not None:
                found.add(digest, part)
            elif not _is_block(digest, value):
                return False
        return before is None and self._same_parts(found)

    def _same_parts(self, found: Parts) -> bool:
        handle = self._new.open_db(_BLOCKS, create=False)
        with self._new.begin() as txn:
            for segment, parts in found.take():
                try:
                    data = codec.decode_block(bytes(txn.get(segment, b"", db=handle)), segment)
                except DamagedRecordError:
                    return False
                if any(codec.block_hash(data[at:end]) != digest for digest, at, end in parts):
                    return False
        return True

    def close(self) -> None:
        self._txn.abort()


def _rows(env: lmdb.Environment, name: bytes) -> Iterator[tuple[bytes, bytes]]:
    handle = env.open_db(name, create=False)
    with env.begin() as txn, txn.cursor(db=handle) as cursor:
        yield from cursor


def _append(env: lmdb.Environment, handle: lmdb._Database, rows: list[tuple[bytes, bytes]]) -> None:
    with env.begin(write=True) as txn, txn.cursor(db=handle) as cursor:
        cursor.putmulti(rows, append=True)


def _is_block(digest: bytes, value: bytes) -> bool:
    try:
        codec.decode_block(value, digest)
    except DamagedRecordError:
        return False
    return True


def _exchange(path: Path) -> None:
    name_locks(path)
    reached("compact.locks-named")
    name_data(path)
    reached("compact.named")
    sync_directory(path)
    reached("compact.done")
