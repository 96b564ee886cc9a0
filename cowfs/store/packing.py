"""Which blocks a compaction puts together in segments, and in which order (docs/format.md,
"Segments").

Versions of a file lie side by side, and so do files of a kind and a name: the compressor finds what
they have in common. A segment begins with the blocks that the present state shows, so that reading
them decompresses little else. Blocks of large files stay by themselves: such a file is read and
written here and there, and its blocks are patches and deltas already. So does what hardly shrinks
(pictures, archives): there is nothing to gain.

Threading: owned by the thread that compacts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple
from zlib import crc32

from cowfs.errors import DamagedRecordError
from cowfs.format import codec, keys, records
from cowfs.format.segment import Part, part_of
from cowfs.store.rewriting import Meter, Progress
from cowfs.store.segments import Segments
from cowfs.store.transaction import Table, Transaction

SEGMENT_BYTES = 4 << 20
"""Raw bytes of a segment: decompressing all of one takes some milliseconds."""
_ENOUGH = SEGMENT_BYTES // 2
_CHOSEN = 4
"""One path in so many is a place to end a segment that has enough."""
_LARGE = 16
"""Blocks that a large file has, or more."""
SMALL = 4096
"""Bytes up to which a block is put into a segment also if it does not shrink."""
_DEEPEST = 4096

Read = Callable[[bytes], bytes]
"""Raw bytes of a block, given its hash. Raises DamagedRecordError."""


class Packing(NamedTuple):
    """parts: by hash, where each block that goes into a segment lies there. segments: by hash, the
    blocks of each in their order. dropped: segments of before of which nothing is left. spent:
    blocks that only deltas needed, which are parts now."""

    parts: dict[bytes, Part]
    segments: dict[bytes, list[bytes]]
    dropped: set[bytes]
    spent: set[bytes]


class _Use(NamedTuple):
    """What a block is of, in an order in which neighbours are alike. age: less for newer ones."""

    suffix: bytes
    name: bytes
    directory: bytes
    number: int
    age: int
    live: bool


class Packer:
    """Decides on one store, in one read transaction."""

    def __init__(self, txn: Transaction, tables: dict[str, Table], progress: Progress) -> None:
        self._txn = txn.examining()
        self._tables = tables
        self._progress = progress
        self._segments = Segments()

    def read(self, digest: bytes) -> bytes:
        """Raw bytes of a block, verified. Raises DamagedRecordError."""
        blocks = self._tables["block"]
        value = self._txn.get(digest, db=blocks)
        if value is None:
            raise DamagedRecordError(what=f"block {digest.hex()[:12]}", detail="it is missing")
        return self._segments.decode(self._txn, blocks, value, digest)

    def segment(self, digests: Iterable[bytes]) -> bytes:
        """Raw bytes of the segment of these blocks. Raises DamagedRecordError."""
        return b"".join([self.read(digest) for digest in digests])

    def plan(self) -> Packing:
        """Look at everything and decide."""
        uses = self._uses()
        order = sorted(uses, key=uses.__getitem__)
        meter = Meter(self._progress, "putting blocks together", len(order))
        packing = Packing({}, {}, set(), set())
        for group in self._groups(meter.count(order), uses):
            group.sort(key=lambda piece: not uses[piece[0]].live)  # stable
            self._enter(packing, group)
        packing.dropped.update(self._dropped(packing))
        packing.spent.update(self._spent(packing))
        return packing

    def _groups(
        self, order: Iterable[bytes], uses: dict[bytes, _Use]
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """Blocks that make a segment each, with their bytes; what cannot be read, or would gain
        nothing, is in none.

        A segment ends with a file where it can, and with one that is chosen by its path: so it does
        not depend on all that comes before, and the next compaction finds most segments made.
        """
        group, size, place = list[tuple[bytes, bytes]](), 0, (b"", b"")
        for digest in order:
            try:
                data = self.read(digest)
            except DamagedRecordError:
                continue
            if not _shrinks(data):
                continue
            before, place = place, (uses[digest].directory, uses[digest].name)
            ends = size > _ENOUGH and place != before and not crc32(b"/".join(place)) % _CHOSEN
            if ends or size + len(data) > SEGMENT_BYTES:
                yield group
                group, size = [], 0
            group.append((digest, data))
            size += len(data)
        yield group

    def _enter(self, packing: Packing, group: list[tuple[bytes, bytes]]) -> None:
        if len(group) < 2:
            return
        segment, at = codec.block_hash(b"".join([data for _, data in group])), 0
        packing.segments[segment] = [digest for digest, _ in group]
        for digest, data in group:
            packing.parts[digest] = Part(segment, at, at + len(data))
            at += len(data)

    def _dropped(self, packing: Packing) -> set[bytes]:
        """Segments whose parts are all elsewhere now, or can be read and will stand alone."""
        found, kept = set[bytes](), set[bytes]()
        for digest, value in self._rows("block"):
            if (part := part_of(value)) is None:
                continue
            found.add(part.segment)
            if digest not in packing.parts:
                try:
                    self.read(digest)
                except DamagedRecordError:
                    kept.add(part.segment)
        return found - kept - packing.segments.keys()

    def _spent(self, packing: Packing) -> set[bytes]:
        """References of deltas that all go into segments, if no file has them any more: versions
        that were thinned, or of checkpoints that were removed."""
        found, needed = set[bytes](), packing.segments.keys() | packing.parts.keys()
        for digest, value in self._rows("block"):
            if (reference := codec.delta_reference(value)) is not None:
                (found if digest in packing.parts else needed).add(reference)
            elif (part := part_of(value)) is not None:
                needed.add(part.segment)
        found -= needed
        if found:
            found.difference_update(digest for _, digest in self._rows("extent"))
        return found

    # -- what blocks are of -------------------------------------------------------------------

    def _uses(self) -> dict[bytes, _Use]:
        """Of each block of a file that is not large, what it was last."""
        owners, live = self._contents()
        places = self._places()
        directories: dict[int, bytes] = {1: b""}
        found: dict[bytes, _Use] = {}
        for prefix, rows in groupby(self._rows("extent"), lambda row: row[0][:8]):
            extents = list(rows)
            if any(keys.extent_block(key) >= _LARGE for key, _ in extents):
                continue
            content, before = keys.unpack_id(prefix), -1
            parent, name = places.get(owners.get(content, content), (1, b""))
            if parent not in directories:
                directories[parent] = _path(parent, places)
            _, dot, suffix = name.rpartition(b".")
            for key, digest in extents:
                number = keys.extent_block(key)
                shown, before = number != before and content in live, number
                if len(digest) != codec.HASH_SIZE:
                    continue
                use = _Use(
                    suffix if dot else b"",
                    name,
                    directories[parent],
                    number,
                    -keys.epoch_of(key),
                    shown,
                )
                known = found.get(digest)
                if known is None or (not use.live, use.age) < (not known.live, known.age):
                    found[digest] = use
        return found

    def _contents(self) -> tuple[dict[int, int], set[int]]:
        """The inodes of contents that have another number, and the contents that inodes have in
        their newest versions."""
        owners, live, current = dict[int, int](), set[int](), 0
        for key, value in self._rows("inode"):
            ino = keys.unpack_id(key)
            newest, current = ino != current, ino
            if len(value) < records.INODE_FIXED:
                continue  # a whiteout, or damaged
            content = records.unpack_inode(value).content
            if content != ino:
                owners[content] = ino
            if newest:
                live.add(content)
        return owners, live

    def _places(self) -> dict[int, tuple[int, bytes]]:
        """A name of each inode: its directory, and the name there."""
        found: dict[int, tuple[int, bytes]] = {}
        for key, _ in self._rows("link"):
            found.setdefault(keys.unpack_id(key), keys.link_parts(key))
        return found

    def _rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor(db=self._tables[table]) as cursor:
            if cursor.set_range(b""):
                for key, stored in cursor.following():
                    yield key, cursor.open(key, stored)


def _shrinks(data: bytes) -> bool:
    size = len(data)
    return size <= SMALL or len(codec.encode_block(data)) * 10 < size * 9


def _path(ino: int, places: dict[int, tuple[int, bytes]]) -> bytes:
    parts: list[bytes] = []
    while ino in places and len(parts) < _DEEPEST:
        ino, name = places[ino]
        parts.append(name)
    return b"/".join(reversed(parts))
