"""The headers of blocks, without their bytes: what they are deltas to, and how long they are.

Threading: any thread; a read transaction of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from cowfs.format import codec
from cowfs.store.env import Store


class Header(NamedTuple):
    """A stored block. size: bytes of its record. reference: hash of the block it is a delta to.
    codec: how it is stored (format/codec.py). length: bytes of what it holds."""

    digest: bytes
    size: int
    reference: bytes | None
    codec: int
    length: int


def block_headers(store: Store, at: bytes, most: int) -> tuple[list[Header], bytes | None, int]:
    """At most so many blocks from a hash on, the hash of the next one (None at the end), and how
    many blocks there are. Only the first page of each is read."""
    handle: Any = store.tables["block"].handle
    found: list[Header] = []
    with store.env.begin(db=handle, buffers=True) as txn, txn.cursor() as cursor:
        total = txn.stat(handle)["entries"]
        more = cursor.set_range(at)
        while more:
            key, value = cursor.item()
            digest = bytes(key)
            if len(found) == most:
                return found, digest, total
            if len(digest) == codec.HASH_SIZE:
                start = bytes(value[: codec.HEADER_SIZE + codec.HASH_SIZE])
                reference, length = codec.delta_reference(start), int.from_bytes(start[1:5], "big")
                found.append(
                    Header(digest, len(value), reference, start[0] if start else 0, length)
                )
            more = cursor.next()
    return found, None, total
