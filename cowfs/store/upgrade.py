"""Upgrading a store of version 1 of the format (docs/format.md, "Versions of the format").

The new store is made beside the old one, compared with it record by record, put on stable storage,
and only then given its name: a crash at any moment leaves the one or the other, whole. The old file
stays as `KEPT` until a whole `verify` of the new store finds nothing.

Threading: everything runs in the calling thread, whose process holds the store's lock.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import lmdb

from cowfs import __version__
from cowfs.errors import (
    DamagedRecordError,
    StoreDamagedError,
    StoreFormatError,
    UpgradeFailedError,
)
from cowfs.format import checksum, records, version
from cowfs.store.files import DATA, TABLES, new_env, open_env, sync_directory
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
from cowfs.store.sums import KEPT as KEPT_SUMS
from cowfs.store.transaction import Table, Transaction

KEPT = "data.mdb.version-1"
"""The store as it was before the upgrade."""


def stored_version(path: Path, env: lmdb.Environment, *, damaged: bool) -> int:
    """The version of a store's format.

    damaged: when its format record cannot be read, what other records look like. Raises
    StoreFormatError for one that this code cannot read, StoreDamagedError.
    """
    try:
        meta = env.open_db(b"meta", create=False)
        with env.begin() as txn:
            value = txn.get(checksum.FORMAT_KEY, db=meta)
        record = version.decode_format(bytes(value)) if value is not None else None
        reason = "it has no format record"
    except (lmdb.Error, DamagedRecordError) as error:
        record, reason = None, str(error)
    if record is None:
        if damaged:
            return version.VERSION if _has_checksums(env) else 1
        raise StoreDamagedError(path=str(path), detail=reason)
    if unreadable := version.unreadable_reason(record):
        raise StoreFormatError(path=str(path), detail=unreadable, version=__version__)
    return record.version


def _has_checksums(env: lmdb.Environment) -> bool:
    """Whether any of a store's epochs or checkpoints has a checksum that fits."""
    for table in ("epoch", "checkpoint", "branch", "inode"):
        sealing = checksum.of_table(table, version.VERSION)
        try:
            handle = env.open_db(table.encode(), create=False)
            with env.begin() as txn, txn.cursor(db=handle) as cursor:
                if any(sealing.matches(bytes(key), bytes(stored)) for key, stored in cursor):
                    return True
        except lmdb.Error:
            continue
    return False


def kept_bytes(path: Path) -> int:
    """Bytes of disk that the copy from before an upgrade takes, 0 when there is none."""
    try:
        return (path / KEPT).stat().st_blocks * 512
    except OSError:
        return 0


def drop_kept(path: Path) -> bool:
    """Remove the copy from before an upgrade; whether there was one that could be removed. For who
    has verified the whole store and found nothing."""
    try:
        os.unlink(path / KEPT)
    except OSError:
        return False
    return True


def upgrade(path: Path, progress: Progress) -> None:
    """Upgrade the store; the caller holds its `owner` lock, and has no environment of it open.

    Raises StoreDamagedError and UpgradeFailedError; the store is as it was then.
    """
    reached("upgrade.begin")
    try:
        refuse_damaged_pages(path, progress)
        _see_that_there_is_room(path)
        _make(path, progress)
        _keep(path)
        _exchange(path)
    except BaseException as error:
        _take_back(path)
        if isinstance(error, (*FAILURES, DamagedRecordError)):
            raise UpgradeFailedError(path=str(path), detail=reason(error)) from None
        raise


def _take_back(path: Path) -> None:
    """Remove what an upgrade that failed has made."""
    take_back(path)
    with contextlib.suppress(OSError):
        if os.path.samefile(path / DATA, path / KEPT):
            os.unlink(path / KEPT)


def _see_that_there_is_room(path: Path) -> None:
    """For as much again as there is, with a checksum for each record."""
    old = open_env(path, writable=False)
    try:
        tables = _tables(old, 1)
        with Transaction(old.begin()) as txn:
            stats = [txn.stat(table) for table in tables]
    finally:
        old.close()
    pages = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
    entries = sum(s["entries"] for s in stats)
    needed = pages * stats[0]["psize"] + 2 * checksum.SIZE * entries + SLACK_BYTES
    see_that_there_is_room(path, needed)


def _tables(env: lmdb.Environment, stored: int) -> list[Table]:
    """All tables, also those that this version does not know; `stored` is the environment's."""
    with env.begin() as txn, txn.cursor(db=env.open_db(None)) as cursor:
        names = [bytes(key).decode() for key, _ in cursor]
    return [_table(env, name, stored, create=False) for name in names]


def _table(env: lmdb.Environment, name: str, stored: int, *, create: bool) -> Table:
    handle = env.open_db(name.encode(), create=create)
    return Table(name, handle, checksum.of_table(name, stored if name in TABLES else 1))


def _make(path: Path, progress: Progress) -> None:
    """Copy every record with its checksum, compare, and bring all to stable storage."""
    old = open_env(path, writable=False)
    try:
        new = new_env(path)
        try:
            reached("upgrade.opened")
            _copy(old, new, progress)
            reached("upgrade.copied")
            _compare(old, new, progress)
            reached("upgrade.compared")
            new.sync(True)
        finally:
            new.close()
    finally:
        old.close()
    sync_new(path)


def _copy(old: lmdb.Environment, new: lmdb.Environment, progress: Progress) -> None:
    tables = _tables(old, 1)
    with Transaction(old.begin()) as source:
        total = sum(source.stat(table)["entries"] for table in tables)
        meter = Meter(progress, "upgrading the store", total)
        for table in tables:
            target = _table(new, table.name, version.VERSION, create=True)
            rows = meter.count(_rows(source, table))
            if table.name == "meta":
                rows = ((k, _format(v) if _is_format(table, k) else v) for k, v in rows)
            for batch in batches(rows):
                _append(new, target, batch)
    known = {table.name: table for table in _tables(new, version.VERSION)}
    with Transaction(new.begin(write=True)) as txn:
        txn.recount(known)


def _append(env: lmdb.Environment, table: Table, rows: list[tuple[bytes, bytes]]) -> None:
    with Transaction(env.begin(write=True)) as txn, txn.cursor(db=table) as cursor:
        cursor.putmulti(rows, append=True)


def _rows(txn: Transaction, table: Table) -> Iterator[tuple[bytes, bytes]]:
    """The records of a table. Raises DamagedRecordError."""
    with txn.cursor(db=table) as cursor:
        if cursor.set_range(b""):
            for key, stored in cursor.following():
                yield key, cursor.open(key, stored)


def _without_sums(txn: Transaction, table: Table) -> Iterator[tuple[bytes, bytes]]:
    """The records of a table of the new store that the old one had as well."""
    rows = _rows(txn, table)
    return (r for r in rows if not (table.name == "meta" and r[0].startswith(KEPT_SUMS)))


def _is_format(table: Table, key: bytes) -> bool:
    return table.name == "meta" and key == checksum.FORMAT_KEY


def _format(old: bytes) -> bytes:
    """The format record of the new store; a damaged one is made anew, as a repair would."""
    try:
        stored = version.decode_format(old)
        record = version.format_record(stored.uuid, stored.created, stored.compatible)
    except DamagedRecordError:
        record = version.format_record(uuid.uuid4().hex, time.time_ns())
    return records.encode(record)


def _compare(old: lmdb.Environment, new: lmdb.Environment, progress: Progress) -> None:
    """A second pass, through the functions that read: every record is there, opens, and is what it
    was, and there is nothing else. Raises DifferentError, DamagedRecordError."""
    olds, news = _tables(old, 1), _tables(new, version.VERSION)
    if [table.name for table in olds] != [table.name for table in news]:
        raise DifferentError("the copy has other tables")
    with Transaction(old.begin()) as before, Transaction(new.begin()) as after:
        total = sum(before.stat(table)["entries"] for table in olds)
        meter = Meter(progress, "comparing the upgraded store", total)
        for one, other in zip(olds, news, strict=True):
            rows = zip_longest(_rows(before, one), _without_sums(after, other))
            for was, now in meter.count(rows):
                if was != now and not (was and now and _is_new_format(one, was, now)):
                    raise DifferentError(f"the copy of the table {one.name} is not the same")


def _is_new_format(table: Table, was: tuple[bytes, bytes], now: tuple[bytes, bytes]) -> bool:
    if not _is_format(table, was[0]) or was[0] != now[0]:
        return False
    return version.decode_format(now[1]).version == version.VERSION


def _keep(path: Path) -> None:
    """Give the old file its second name."""
    try:
        os.link(path / DATA, path / KEPT)
    except FileExistsError:
        if not os.path.samefile(path / DATA, path / KEPT):  # else of an upgrade that was cut short
            detail = f"the copy of another upgrade is there; move {path / KEPT} away"
            raise UpgradeFailedError(path=str(path), detail=detail) from None
    sync_directory(path)
    reached("upgrade.kept")


def _exchange(path: Path) -> None:
    name_locks(path)
    reached("upgrade.locks-named")
    name_data(path)
    reached("upgrade.named")
    sync_directory(path)
    reached("upgrade.done")
