"""Writing a store's file anew, so that it takes as little room as it can.

LMDB gives pages that became free to later commits, never to the file system; and since versions of
a thing are put before older ones, its pages end up half full. A copy in the order of the keys has
neither. On the way, blocks that stand alone are compressed harder than there is time for in a
commit. Nothing else changes: every other record is copied as it is, byte by byte.

Threading: everything runs in the calling thread, which takes the store's lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import lmdb

from cowfs.errors import CompactFailedError, DamagedRecordError
from cowfs.format import codec
from cowfs.store.files import DATA, NEW, lock_owner, new_env, open_env, sync_directory
from cowfs.store.rewriting import (
    FAILURES,
    DifferentError,
    Meter,
    Progress,
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
from cowfs.store.steps import reached
from cowfs.store.upgrade import stored_version

_BLOCKS = b"block"


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
        names = _names(old)
        see_that_there_is_room(path, _bytes_used(old, names) + SLACK_BYTES)
        new = new_env(path)
        try:
            reached("compact.opened")
            _copy(old, new, names, progress)
            reached("compact.copied")
            _compare(old, new, names, progress)
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


def _copy(
    old: lmdb.Environment, new: lmdb.Environment, names: list[bytes], progress: Progress
) -> None:
    meter = Meter(progress, "copying the store", _entries(old, names))
    for name in names:
        target = new.open_db(name)
        rows = meter.count(_rows(old, name))
        if name == _BLOCKS:
            rows = ((key, _packed(key, value)) for key, value in rows)
        for batch in batches(rows):
            _append(new, target, batch)


def _rows(env: lmdb.Environment, name: bytes) -> Iterator[tuple[bytes, bytes]]:
    handle = env.open_db(name, create=False)
    with env.begin() as txn, txn.cursor(db=handle) as cursor:
        yield from cursor


def _append(env: lmdb.Environment, handle: lmdb._Database, rows: list[tuple[bytes, bytes]]) -> None:
    with env.begin(write=True) as txn, txn.cursor(db=handle) as cursor:
        cursor.putmulti(rows, append=True)


def _packed(digest: bytes, value: bytes) -> bytes:
    """A block that stands alone, smaller if it can be; a damaged one as it is."""
    if codec.delta_reference(value) is not None:
        return value
    try:
        return codec.repack(value, digest)
    except DamagedRecordError:
        return value


def _compare(
    old: lmdb.Environment, new: lmdb.Environment, names: list[bytes], progress: Progress
) -> None:
    """A second pass: every record is there and is what it was, or a block with the same bytes, and
    there is nothing else. Raises DifferentError."""
    meter = Meter(progress, "comparing the copy", _entries(old, names))
    if _names(new) != names:
        raise DifferentError("the copy has other tables")
    for name in names:
        for was, now in meter.count(zip_longest(_rows(old, name), _rows(new, name))):
            if was != now and not (name == _BLOCKS and was and now and _same_block(was, now)):
                raise DifferentError(f"the copy of the table {name.decode()} is not the same")


def _same_block(was: tuple[bytes, bytes], now: tuple[bytes, bytes]) -> bool:
    try:
        codec.decode_block(now[1], now[0])
    except DamagedRecordError:
        return False
    return was[0] == now[0]


def _exchange(path: Path) -> None:
    name_locks(path)
    reached("compact.locks-named")
    name_data(path)
    reached("compact.named")
    sync_directory(path)
    reached("compact.done")
