"""Segments of which less than half is needed any more: what is left of each becomes another one.

After a sweep, and in one transaction for each segment: its parts get their new places, and it goes.
Nobody makes a part of it meanwhile, so those that are found before are all that there are.

Threading: as the collection, of which this is a step (service/collecting).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from cowfs.format import codec
from cowfs.format.segment import Part, encode_part, encode_segment, part_of
from cowfs.store.env import Store, Transaction
from cowfs.store.headers import Header, block_headers
from cowfs.store.snapshot import Reader, read_block
from cowfs.types import BLOCK_SIZE

_BLOCKS = 2000


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of a segment. before: the stored values of its parts, as they must still be.
    after: what is put in their place, the new segment included. gained: bytes."""

    segment: bytes
    before: dict[bytes, bytes]
    after: dict[bytes, bytes]
    gained: int

    def put(self, txn: Transaction, store: Store) -> bool:
        """Replace the segment; False when something else took the place of a part."""
        blocks = store.tables["block"]
        if any(txn.get(digest, db=blocks) != value for digest, value in self.before.items()):
            return False
        for digest, value in self.after.items():
            txn.put(digest, value, db=blocks)
        return txn.delete(self.segment, db=blocks)


def remains(store: Store) -> Iterator[Remains]:
    """What is to be made anew, segment by segment. Raises DamagedRecordError."""
    found: dict[bytes, Header] = {}
    needed = Counter[bytes]()
    for header in _headers(store):
        if header.codec == codec.PART and header.reference is not None:
            needed[header.reference] += header.length
        elif header.reference is None and header.length > BLOCK_SIZE:
            found[header.digest] = header
    parts: dict[bytes, list[bytes]] = {
        digest: [] for digest, header in found.items() if 0 < 2 * needed[digest] < header.length
    }
    for header in _headers(store) if parts else ():
        if header.codec == codec.PART and header.reference in parts:
            parts[header.reference].append(header.digest)
    for segment, digests in parts.items():
        if (made := _anew(store, segment, digests, found[segment].size)) is not None:
            yield made


def _headers(store: Store) -> Iterator[Header]:
    at: bytes | None = b""
    while at is not None:
        headers, at, _ = block_headers(store, at, _BLOCKS)
        yield from headers


def _anew(store: Store, segment: bytes, digests: list[bytes], size: int) -> Remains | None:
    """None when nothing would be gained, or the parts are others by now."""
    with Reader(store) as reader:
        before = {digest: reader.get("block", digest) or b"" for digest in digests}
        places = {digest: part_of(value) for digest, value in before.items()}
        order = [
            (part.start, digest)
            for digest, part in places.items()
            if part is not None and part.segment == segment
        ]
        pieces = [(digest, read_block(reader, digest)) for _, digest in sorted(order)]
    if len(pieces) != len(digests):
        return None
    data = b"".join([piece for _, piece in pieces])
    name = codec.block_hash(data)
    after = {}
    if len(pieces) == 1 or len(data) <= BLOCK_SIZE:  # a block of a file may have that hash
        after = {digest: codec.encode_block(piece) for digest, piece in pieces}
    else:
        at = 0
        for digest, piece in pieces:
            after[digest] = encode_part(Part(name, at, at + len(piece)))
            at += len(piece)
        after[name] = encode_segment(data)
    gained = size - sum(map(len, after.values())) + sum(map(len, before.values()))
    return Remains(segment, before, after, gained) if gained > 0 else None
