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


class _Raw(Protocol):
    """The part of lmdb.Cursor that the store uses, with `bytes` as it is without buffers."""

    def key(self) -> bytes: ...
    def value(self) -> bytes: ...
    def item(self) -> tuple[bytes, bytes]: ...
    def set_range(self, key: bytes) -> bool: ...
    def last(self) -> bool: ...
    def next(self) -> bool: ...
    def delete(self) -> bool: ...
    def putmulti(self, items: list[tuple[bytes, bytes]], *, append: bool) -> tuple[int, int]: ...
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[tuple[bytes, bytes]]: ...


class Table:
    """One table of the store. handle: LMDB's. checksum: how its values are stored."""

    __slots__ = ("checksum", "handle", "name")

    def __init__(self, name: str, handle: object, checksum: Checksum) -> None:
        self.name = name
        self.handle = handle
        self.checksum = checksum


class Cursor:
    """A cursor of LMDB. `stored` is the value here as it is stored; `open` and `seal` take its
    checksum off and put it on, given the key."""

    __slots__ = (
        "_raw",
        "close",
        "delete",
        "key",
        "last",
        "next",
        "open",
        "seal",
        "set_range",
        "stored",
    )

    def __init__(self, raw: _Raw, checksum: Checksum, *, examining: bool) -> None:
        self._raw = raw
        self.seal = checksum.seal
        self.open: Callable[[bytes, bytes], bytes] = (
            checksum.examine if examining else checksum.open
        )
        self.key = raw.key
        self.stored = raw.value
        self.set_range = raw.set_range
        self.last = raw.last
        self.next = raw.next
        self.delete = raw.delete
        self.close = raw.close

    def value(self) -> bytes:
        """The value here. Raises DamagedRecordError."""
        return self.open(*self._raw.item())

    def following(self) -> Iterator[tuple[bytes, bytes]]:
        """(key, stored value) from here on; who wants the value opens it."""
        return iter(self._raw)

    def putmulti(self, items: Iterable[tuple[bytes, bytes]], *, append: bool = False) -> None:
        """Put (key, value) records. append: they follow all that the table has, in order."""
        seal = self.seal
        self._raw.putmulti([(key, seal(key, value)) for key, value in items], append=append)

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Transaction:
    """A transaction of LMDB; as a context it commits, or aborts when an exception leaves it."""

    __slots__ = ("_examining", "_raw")

    def __init__(self, raw: object, *, examining: bool = False) -> None:
        self._raw = cast(Any, raw)
        self._examining = examining

    def examining(self) -> Transaction:
        """The same transaction, in which a damaged value is `DAMAGED`."""
        return Transaction(self._raw, examining=True)

    def get(self, key: bytes, *, db: Table) -> bytes | None:
        """A value, None when there is none. Raises DamagedRecordError."""
        stored = self._raw.get(key, db=db.handle)
        if stored is None:
            return None
        checksum = db.checksum
        return checksum.examine(key, stored) if self._examining else checksum.open(key, stored)

    def put(self, key: bytes, value: bytes, *, db: Table) -> None:
        """Write a record."""
        self._raw.put(key, db.checksum.seal(key, value), db=db.handle)

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Take a record out; whether it was there."""
        return bool(self._raw.delete(key, db=db.handle))

    def cursor(self, db: Table) -> Cursor:
        """A cursor of its own; close it."""
        return Cursor(self._raw.cursor(db=db.handle), db.checksum, examining=self._examining)

    def stat(self, db: Table) -> dict[str, int]:
        """Counts of a table's pages and entries."""
        return cast(dict[str, int], self._raw.stat(db.handle))

    def abort(self) -> None:
        """End it; nothing of it stays."""
        self._raw.abort()

    def __enter__(self) -> Transaction:
        self._raw.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._raw.__exit__(*exc)
