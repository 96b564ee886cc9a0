"""Reading the store at an epoch: a read transaction seen through a lineage.

`Snapshot` is what every read-only algorithm works on (diff, export, verify, restore), and what
the volume loads its caches from.

Threading: a snapshot belongs to the thread that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.store.env import Cursor, Store, Transaction
from cowfs.store.lineage import Lineage
from cowfs.types import BLOCK_SIZE

_INVERT = (1 << 64) - 1


Damaged = Callable[[bytes, DamagedRecordError], None]
"""Told of a damaged record: its key, and what is wrong."""


class Reader:
    """One read transaction with a cursor for each table that was asked for."""

    def __init__(self, store: Store, txn: Transaction | None = None) -> None:
        """`txn`: read in this transaction, which stays the caller's to end."""
        self.store = store
        self.txn: Transaction = txn if txn is not None else store.begin()
        self._own = txn is None
        self._cursors: dict[str, Cursor] = {}

    def cursor(self, table: str) -> Cursor:
        """The shared cursor of a table: position it before each use."""
        cursor = self._cursors.get(table)
        if cursor is None:
            cursor = self._cursors[table] = self.txn.cursor(db=self.store.tables[table])
        return cursor

    def get(self, table: str, key: bytes) -> bytes | None:
        """A value, None when there is none. Raises DamagedRecordError."""
        return self.txn.get(key, db=self.store.tables[table])

    def last_key(self, table: str) -> bytes | None:
        """The greatest key of a table, None when it is empty."""
        cursor = self.cursor(table)
        return cursor.key() if cursor.last() else None

    def scan(
        self, table: str, prefix: bytes = b"", damaged: Damaged | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """All records whose key starts with `prefix`, in key order, on a cursor of its own.

        damaged: told of records whose checksum is wrong; they are left out then. Without it they
        raise DamagedRecordError.
        """
        with self.txn.cursor(db=self.store.tables[table]) as cursor:
            if not cursor.set_range(prefix):
                return
            opened = cursor.open
            for key, stored in cursor.following():
                if not key.startswith(prefix):
                    return
                try:
                    value = opened(key, stored)
                except DamagedRecordError as error:
                    if damaged is None:
                        raise
                    damaged(key, error)
                    continue
                yield key, value

    def keys(self, table: str, prefix: bytes = b"") -> Iterator[bytes]:
        """All keys that start with `prefix`, whatever the checksums of their values."""
        with self.txn.cursor(db=self.store.tables[table]) as cursor:
            found = cursor.set_range(prefix)
            while found and (key := cursor.key()).startswith(prefix):
                yield key
                found = cursor.next()

    def keys_backwards(self, table: str, prefix: bytes, end: bytes) -> Iterator[bytes]:
        """The keys that start with `prefix`, the greatest first. end: less than every key after
        those, and not less than any of them."""
        with self.txn.cursor(db=self.store.tables[table]) as cursor:
            if cursor.set_range(end) or cursor.last():
                for key in cursor.preceding_keys():
                    if key.startswith(prefix):
                        yield key
                    elif key < prefix:
                        return

    def backwards(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All records of a table, the greatest key first. Raises DamagedRecordError."""
        with self.txn.cursor(db=self.store.tables[table]) as cursor:
            if cursor.last():
                opened = cursor.open
                for key, stored in cursor.preceding():
                    yield key, opened(key, stored)

    def count(self, table: str) -> int:
        """How many records a table has: a counter of LMDB."""
        return int(self.txn.stat(self.store.tables[table])["entries"])

    def epoch(self, epoch: int) -> records.EpochRecord:
        """Raises DamagedRecordError when there is no such epoch."""
        value = self.get("epoch", keys.pack_id(epoch))
        if value is None:
            raise DamagedRecordError(what=f"epoch {epoch}", detail="it does not exist")
        return records.decode(value, records.EpochRecord)

    def lineage(self, epoch: int) -> Lineage:
        """The lineage of an epoch, followed run by run: O(restores on the way), not O(epochs)."""
        ranges: list[tuple[int, int]] = []
        while True:
            record = self.epoch(epoch)
            if record.run_start > epoch:
                raise DamagedRecordError(what=f"epoch {epoch}", detail="its run starts after it")
            ranges.append((record.run_start, epoch))
            if record.run_start == 0:
                break
            parent = self.epoch(record.run_start).parent
            if parent >= record.run_start:
                raise DamagedRecordError(what=f"epoch {epoch}", detail="its parent is younger")
            epoch = parent
        return Lineage(tuple(reversed(ranges)))

    def branch(self, name: str) -> records.BranchRecord:
        value = self.get("branch", name.encode())
        if value is None:
            raise DamagedRecordError(what=f"branch {name}", detail="it does not exist")
        return records.decode(value, records.BranchRecord)

    def close(self) -> None:
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors.clear()
        if self._own:
            self.txn.abort()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Snapshot:
    """The state of the store that one lineage sees."""

    def __init__(self, reader: Reader, lineage: Lineage) -> None:
        self.reader = reader
        self.lineage = lineage
        self._head = keys.inverted(lineage.head)

    def newest(self, table: str, prefix: bytes) -> tuple[int, bytes] | None:
        """(epoch, value) of the version that this lineage sees, None when there is none.

        `prefix` is the key without its epoch. An empty value is a whiteout. Raises
        DamagedRecordError when its checksum is wrong; other versions do not matter.
        """
        cursor = self.reader.cursor(table)
        if not cursor.set_range(prefix + self._head):
            return None
        visible, size = self.lineage.visible, len(prefix) + 8
        while True:
            key = cursor.key()
            if len(key) != size or not key.startswith(prefix):
                return None
            epoch = _INVERT - int.from_bytes(key[-8:], "big")
            if visible(epoch):
                return epoch, cursor.open(key, cursor.stored())
            if not cursor.next():
                return None

    def inode(self, ino: int) -> records.InodeRecord | None:
        found = self.newest("inode", keys.pack_id(ino))
        return records.unpack_inode(found[1]) if found and found[1] else None

    def lookup(self, parent: int, name: bytes) -> tuple[int, int] | None:
        """(ino, kind) of a directory entry, None when there is none."""
        found = self.newest("dirent", keys.dirent_prefix(parent, name))
        return records.unpack_dirent(found[1]) if found and found[1] else None

    def _versions(
        self, table: str, prefix: bytes, damaged: Damaged | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Newest visible version of each thing below `prefix`: (key, value), no whiteouts.

        damaged: as in `Reader.scan`.
        """
        visible = self.lineage.visible
        with self.reader.txn.cursor(db=self.reader.store.tables[table]) as cursor:
            if not cursor.set_range(prefix):
                return
            opened = cursor.open
            done: bytes | None = None
            for key, stored in cursor.following():
                if not key.startswith(prefix):
                    return
                thing = key[:-8]
                if thing == done or not visible(_INVERT - int.from_bytes(key[-8:], "big")):
                    continue
                done = thing
                try:
                    value = opened(key, stored)
                except DamagedRecordError as error:
                    if damaged is None:
                        raise
                    damaged(key, error)
                    continue
                if value:
                    yield key, value

    def entries(
        self, parent: int, damaged: Callable[[bytes, str], None] | None = None
    ) -> Iterator[tuple[bytes, int, int]]:
        """(name, ino, kind) of a directory, sorted by name.

        damaged: told of entries that cannot be read, with the reason; they are left out then.
        Without it they raise DamagedRecordError.
        """
        report: Damaged | None = None
        if damaged is not None:

            def report(key: bytes, error: DamagedRecordError) -> None:
                damaged(key[8:-9], str(error))

        for key, value in self._versions("dirent", keys.pack_id(parent), report):
            try:
                ino, kind = records.unpack_dirent(value)
            except DamagedRecordError as error:
                if report is None:
                    raise
                report(key, error)
                continue
            yield key[8:-9], ino, kind

    def links(self, ino: int) -> list[tuple[int, bytes]]:
        """(parent, name) of every directory entry of an inode."""
        return [keys.link_parts(key) for key, _ in self._versions("link", keys.pack_id(ino))]

    def xattrs(self, ino: int) -> dict[bytes, bytes]:
        """Extended attributes: name to value."""
        return {key[8:-9]: value[1:] for key, value in self._versions("xattr", keys.pack_id(ino))}

    def block_source(self, content: int, number: int, base_size: int) -> tuple[bytes | None, int]:
        """Where a block comes from: (hash, how many of its bytes count).

        The hash is b"" for a hole, None for a block of the base file that is not sealed, and
        `EXTENT_THINNED` for one that is not kept any more.
        Extents of epoch 0 are sealed base content: like the base itself they count only up to
        `base_size`, so that what a truncation cut off never comes back.
        """
        found = self.newest("extent", keys.extent_prefix(content, number))
        below = max(0, base_size - number * BLOCK_SIZE)
        if found is None:
            return (None, below) if below else (b"", 0)
        epoch, digest = found
        if digest == records.EXTENT_BASE:
            sealed = self._sealed(content, number)
            if sealed is None:
                return (None, below) if below else (b"", 0)
            epoch, digest = 0, sealed
        if epoch:
            return digest, BLOCK_SIZE
        return (digest, below) if below else (b"", 0)

    def _sealed(self, content: int, number: int) -> bytes | None:
        """The extent that sealing the base made, None when there is none."""
        return self.reader.get("extent", keys.extent_key(content, number, 0))

    def extents(self, content: int, first: int = 0) -> Iterator[tuple[int, bytes]]:
        """(block number, hash or b"" for a hole or `EXTENT_THINNED`) of a content, ascending.

        Blocks that come from a base file that is not sealed are left out. Raises
        DamagedRecordError.
        """
        visible = self.lineage.visible
        prefix = keys.pack_id(content)
        with self.reader.txn.cursor(db=self.reader.store.tables["extent"]) as cursor:
            if not cursor.set_range(keys.extent_prefix(content, first)):
                return
            opened = cursor.open
            done = -1
            for key, stored in cursor.following():
                if not key.startswith(prefix):
                    return
                block = int.from_bytes(key[8:16], "big")
                if block == done or not visible(_INVERT - int.from_bytes(key[-8:], "big")):
                    continue
                done = block
                value: bytes | None = opened(key, stored)
                if value == records.EXTENT_BASE:
                    value = self._sealed(content, block)
                if value is not None:
                    yield block, value

    def is_thinned(self, content: int) -> bool:
        """Whether some of a content is not kept any more. Raises DamagedRecordError."""
        return any(value == records.EXTENT_THINNED for _, value in self.extents(content))

    def block(self, digest: bytes) -> bytes:
        """Raw bytes of a block, verified. Raises DamagedRecordError (contract 5)."""
        return read_block(self.reader, digest)

    def names_of(self, ino: int, limit: int = 64) -> list[bytes]:
        """Paths of an inode relative to the root, without a leading slash; [] when unreachable."""
        out: list[bytes] = []
        for parent, name in self.links(ino)[:limit]:
            above = self.directory_path(parent)
            if above is not None:
                out.append(above + b"/" + name if above else name)
        return sorted(out)

    def directory_path(self, ino: int) -> bytes | None:
        """Path of a directory relative to the root (b"" for the root), None when unreachable."""
        parts: list[bytes] = []
        while ino != 1:
            links = self.links(ino)
            if not links or len(parts) > 4096:
                return None
            ino, name = links[0]
            parts.append(name)
        return b"/".join(reversed(parts))


def read_block(reader: Reader, digest: bytes) -> bytes:
    """Raw bytes of a stored block, with what it is a delta to or a part of, verified against its
    hash. Raises DamagedRecordError."""
    value = reader.get("block", digest)
    if value is None:
        raise DamagedRecordError(what=f"block {digest.hex()[:12]}", detail="it is missing")
    store = reader.store
    return store.segments.decode(reader.txn, store.tables["block"], value, digest)
