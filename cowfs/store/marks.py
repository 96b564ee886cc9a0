"""Which blocks something refers to.

Threading: owned by one thread.
"""

from __future__ import annotations

_PREFIX = 8


class Marks:
    """Hashes of blocks, by their first 8 bytes.

    Memory: 8 bytes a block. Two blocks with equal first 8 bytes would pass for one another, which
    could hide one reclaimable block in 2^64.
    """

    def __init__(self) -> None:
        self._buckets = [bytearray() for _ in range(256)]
        self._limits = [1 << 16] * 256
        self._first, self._set = -1, set[bytes]()

    def add(self, digest: bytes) -> None:
        """Mark a block."""
        bucket = self._buckets[digest[0]]
        bucket += digest[:_PREFIX]
        if len(bucket) > self._limits[digest[0]]:
            whole = sorted(_split(bucket))
            self._buckets[digest[0]] = bytearray(b"".join(whole))
            self._limits[digest[0]] = max(1 << 16, 2 * _PREFIX * len(whole))

    def has(self, digest: bytes) -> bool:
        """Whether a block was marked. Quick when asked in the order of the hashes, and nothing is
        added meanwhile."""
        if digest[0] != self._first:
            self._first = digest[0]
            self._set = _split(self._buckets[self._first])
        return digest[:_PREFIX] in self._set


def _split(bucket: bytearray) -> set[bytes]:
    return {bytes(bucket[at : at + _PREFIX]) for at in range(0, len(bucket), _PREFIX)}
