"""Reading blocks: what a stored value needs of other blocks, and segments that many lie in.

To read a part, the beginning of its segment is decompressed as far as the part reaches. What was
last decompressed is kept, since neighbours are read together. It is not verified as a whole: each
part has its hash.

Threading: any thread; the transaction is the caller's.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import groupby

from cowfs.errors import DamagedRecordError
from cowfs.format import codec
from cowfs.format.segment import Part, beginning, may_refer, part_of
from cowfs.store.transaction import Table, Transaction

_MOST = 16 << 20
"""Bytes of segments that are kept."""
_LEAST = 1 << 17
"""Bytes of a segment that are decompressed at once, at least: about 0.1 ms."""


class Segments:
    """The beginnings of segments that were read last, by hash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._size = 0

    def decode(self, txn: Transaction, blocks: Table, value: bytes, digest: bytes) -> bytes:
        """Raw bytes of a stored block, verified. blocks: the table. Raises DamagedRecordError."""
        needed = codec.delta_reference(value)
        if needed is None:
            return codec.decode_block(value, digest)
        part = part_of(value)
        if part is not None and (data := self._known(part)) is not None:
            return codec.decode_block(value, digest, data)
        below = txn.get(needed, db=blocks)
        name = f"block {digest.hex()[:12]}"
        if below is None:
            detail = f"its reference {needed.hex()[:12]} is missing"
            raise DamagedRecordError(what=name, detail=detail)
        if not may_refer(value, below):
            detail = f"its reference {needed.hex()[:12]} is itself a delta"
            raise DamagedRecordError(what=name, detail=detail)
        if part is not None:
            return codec.decode_block(value, digest, self._read(part, below))
        return codec.decode_block(value, digest, self.decode(txn, blocks, below, needed))

    def _known(self, part: Part) -> bytes | None:
        """What is kept of a segment, if the part is in it."""
        with self._lock:
            data = self._kept.get(part.segment)
            if data is None or len(data) < part.end:
                return None
            self._kept.move_to_end(part.segment)
            return data

    def _read(self, part: Part, stored: bytes) -> bytes:
        """Decompress a segment up to a part; twice as far as before, since more may be wanted."""
        known = len(self._kept.get(part.segment, b""))
        data = beginning(stored, part.segment, max(part.end, 2 * known, _LEAST))
        with self._lock:
            before = self._kept.pop(part.segment, b"")
            self._kept[part.segment] = data
            self._size += len(data) - len(before)
            while self._size > _MOST and len(self._kept) > 1:
                self._size -= len(self._kept.popitem(last=False)[1])
        return data


class Parts:
    """Parts that were met in the order of their hashes, to be looked at segment by segment.

    Memory: some 120 bytes for each.
    """

    def __init__(self) -> None:
        self._rows: list[bytes] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, digest: bytes, part: Part) -> None:
        """Note the part that a block is."""
        place = part.start.to_bytes(4, "big") + part.end.to_bytes(5, "big")
        self._rows.append(part.segment + place + digest)

    def take(self) -> Iterator[tuple[bytes, list[tuple[bytes, int, int]]]]:
        """All that was added: each segment's hash, and (hash, start, end) of its parts."""
        rows, self._rows = sorted(self._rows), []
        for segment, found in groupby(rows, lambda row: row[: codec.HASH_SIZE]):
            yield segment, [_placed(row[codec.HASH_SIZE :]) for row in found]


def _placed(row: bytes) -> tuple[bytes, int, int]:
    return row[9:], int.from_bytes(row[:4], "big"), int.from_bytes(row[4:9], "big")
