"""Tables, transactions and cursors: where checksums are put on and taken off.

Whoever reads or writes the store does it through these, so nobody above sees a checksum or can
forget one. A value whose checksum is wrong raises DamagedRecordError where it is read; keys are
given as they are. Through `Transaction.examining` it is the value `DAMAGED` instead.

Threading: a transaction and its cursors belong to the thread that began it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, cast

from cowfs.format.checksum import Checksum
from cowfs.store.sums import KEPT, SUMMED, Sums, pack, unpack

_NOTHING = pack(0, 0)


class _Raw(Protocol):
    """The part of lmdb.Cursor that the store uses, with `bytes` as it is without buffers."""

    def key(self) -> bytes: ...
    def value(self) -> bytes: ...
    def item(self) -> tuple[bytes, bytes]: ...
    def set_key(self, key: bytes) -> bool: ...
    def set_range(self, key: bytes) -> bool: ...
    def last(self) -> bool: ...
    def next(self) -> bool: ...
    def iternext(self, *, keys: bool, values: bool) -> Iterator[bytes]: ...
    def iterprev(self, *, keys: bool, values: bool) -> Iterator[Any]: ...
    def delete(self) -> bool: ...
    def putmulti(self, items: list[tuple[bytes, bytes]], *, append: bool) -> tuple[int, int]: ...
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[tuple[bytes, bytes]]: ...


class Table:
    """One table of the store. handle: LMDB's. checksum: how its values are stored."""

    __slots__ = ("checksum", "handle", "name", "summed")

    def __init__(self, name: str, handle: object, checksum: Checksum) -> None:
        self.name = name
        self.handle = handle
        self.checksum = checksum
        self.summed = name in SUMMED


class Cursor:
    """A cursor of LMDB. `stored` is the value here as it is stored; `open` and `seal` take its
    checksum off and put it on, given the key."""

    __slots__ = (
        "_raw",
        "_sums",
        "_table",
        "close",
        "key",
        "last",
        "next",
        "open",
        "seal",
        "set_range",
        "stored",
    )

    def __init__(self, raw: _Raw, table: Table, sums: Sums | None, *, examining: bool) -> None:
        self._raw = raw
        self._table = table
        self._sums = sums if table.summed else None
        checksum = table.checksum
        self.seal = checksum.seal
        self.open: Callable[[bytes, bytes], bytes] = (
            checksum.examine if examining else checksum.open
        )
        self.key = raw.key
        self.stored = raw.value
        self.set_range = raw.set_range
        self.last = raw.last
        self.next = raw.next
        self.close = raw.close

    def value(self) -> bytes:
        """The value here. Raises DamagedRecordError."""
        return self.open(*self._raw.item())

    def following(self) -> Iterator[tuple[bytes, bytes]]:
        """(key, stored value) from here on; who wants the value opens it."""
        return iter(self._raw)

    def following_keys(self) -> Iterator[bytes]:
        """The keys from here on: the quickest way through many records."""
        return self._raw.iternext(keys=True, values=False)

    def preceding(self) -> Iterator[tuple[bytes, bytes]]:
        """(key, stored value) from here back to the first; who wants the value opens it."""
        return self._raw.iterprev(keys=True, values=True)

    def preceding_keys(self) -> Iterator[bytes]:
        """The keys from here back to the first."""
        return self._raw.iterprev(keys=True, values=False)

    def putmulti(self, items: Iterable[tuple[bytes, bytes]], *, append: bool = False) -> None:
        """Put (key, value) records. append: they follow all that the table has, in order."""
        seal = self.seal
        rows = [(key, seal(key, value)) for key, value in items]
        if self._sums is not None:
            fresh: dict[bytes, bytes] = {}
            for key, stored in rows:
                old = fresh.get(key) or (self._raw.value() if self._raw.set_key(key) else None)
                self._sums.replace(self._table.name, key, old, stored)
                fresh[key] = stored
        self._raw.putmulti(rows, append=append)

    def delete(self) -> bool:
        """Take the record here out; whether there is one after it, where the cursor is then."""
        if self._sums is not None:
            key, stored = self._raw.item()
            self._sums.replace(self._table.name, key, stored, None)
        return self._raw.delete() and bool(self._raw.key())  # no key at the end

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Transaction:
    """A transaction of LMDB; as a context it commits, or aborts when an exception leaves it."""

    __slots__ = ("_examining", "_meta", "_raw", "_sums")

    def __init__(
        self,
        raw: object,
        meta: Table | None = None,
        sums: Sums | None = None,
        *,
        examining: bool = False,
    ) -> None:
        """meta: where sums of records are kept, None when they are not. sums: what changed."""
        self._raw = cast(Any, raw)
        self._meta = meta
        self._sums = sums if sums is not None or meta is None else Sums()
        self._examining = examining

    def examining(self) -> Transaction:
        """The same transaction, in which a damaged value is `DAMAGED`."""
        return Transaction(self._raw, self._meta, self._sums, examining=True)

    def get(self, key: bytes, *, db: Table) -> bytes | None:
        """A value, None when there is none. Raises DamagedRecordError."""
        stored = self._raw.get(key, db=db.handle)
        if stored is None:
            return None
        checksum = db.checksum
        return checksum.examine(key, stored) if self._examining else checksum.open(key, stored)

    def put(self, key: bytes, value: bytes, *, db: Table) -> None:
        """Write a record."""
        stored = db.checksum.seal(key, value)
        if db.summed and self._sums is not None:
            self._sums.replace(db.name, key, self._raw.get(key, db=db.handle), stored)
        self._raw.put(key, stored, db=db.handle)

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Take a record out; whether it was there."""
        if db.summed and self._sums is not None:
            self._sums.replace(db.name, key, self._raw.get(key, db=db.handle), None)
        return bool(self._raw.delete(key, db=db.handle))

    def cursor(self, db: Table) -> Cursor:
        """A cursor of its own; close it."""
        raw = self._raw.cursor(db=db.handle)
        return Cursor(raw, db, self._sums, examining=self._examining)

    def stat(self, db: Table) -> dict[str, int]:
        """Counts of a table's pages and entries."""
        return cast(dict[str, int], self._raw.stat(db.handle))

    def id(self) -> int:
        """Its number; of one that only reads, that of the commit which it shows."""
        return int(self._raw.id())

    def abort(self) -> None:
        """End it; nothing of it stays."""
        self._raw.abort()

    def __enter__(self) -> Transaction:
        self._raw.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is None:
            self._write_sums()
        self._raw.__exit__(*exc)

    def _write_sums(self) -> None:
        """Add up what changed. A sum that cannot be read is left as it is: `verify` tells."""
        meta, sums = self._meta, self._sums
        if meta is None or sums is None:
            return
        for name, (count, total) in sums.changes.items():
            stored = self._raw.get(name, db=meta.handle)
            before = unpack(meta.checksum.examine(name, stored)) if stored is not None else (0, 0)
            if before is None:
                continue
            value = pack(before[0] + count, before[1] + total)
            if value == _NOTHING:
                self._raw.delete(name, db=meta.handle)
            else:
                self._raw.put(name, meta.checksum.seal(name, value), db=meta.handle)
        sums.changes.clear()

    def recount(self, tables: dict[str, Table]) -> None:
        """Make all sums anew of the records that are there, and forget what changed."""
        meta, fresh = tables["meta"], Sums()
        for name in SUMMED & tables.keys():
            with self._raw.cursor(db=tables[name].handle) as cursor:
                for key, stored in cursor:
                    fresh.replace(name, key, None, stored)
        with self._raw.cursor(db=meta.handle) as cursor:
            while cursor.set_range(KEPT) and cursor.key().startswith(KEPT):
                cursor.delete()
        for key, value in fresh.rows():
            self._raw.put(key, meta.checksum.seal(key, value), db=meta.handle)
        if self._sums is not None:
            self._sums.changes.clear()
