"""Who needs the blocks that are new: so that what the open epoch writes and takes back again leaves
no block in the store.

The store has no counts of references. But a block that was not there when the open epoch began has
all its references from this process, and from this epoch: extents, and blocks stored as deltas to
it. Those are counted here, in memory. When the last one goes the block goes too. Sealing the epoch
makes its extents permanent, so the counts are dropped then; what became garbage before is not
forgotten. Blocks of older epochs are never counted, and never deleted here.

Threading: owned by the writer thread.
"""

from __future__ import annotations

from itertools import islice

_MOST = 1 << 17
"""Blocks counted at the same time (some 20 MB of memory); further ones stay until they are
collected as garbage of older epochs is (service/collecting)."""


class Ledger:
    """References to new blocks, by hash. `begin` and `roll_back` follow the LMDB transaction."""

    def __init__(self) -> None:
        self._epoch = 0
        self._counts: dict[bytes, int] = {}
        self._unused: dict[bytes, None] = {}
        self._undo: list[tuple[dict[bytes, int], bytes, int | None]] = []
        self._before = (self._epoch, self._counts)
        self._watched: set[bytes] | None = None

    def watch(self) -> None:
        """From now on note what is referred to: a collection begins to look for references."""
        self._watched = set()

    def end_watch(self) -> None:
        """The collection is over."""
        self._watched = None

    @property
    def watching(self) -> bool:
        """Whether a collection looks for references."""
        return self._watched is not None

    def note(self, digest: bytes) -> None:
        """Something is going to rely on a block."""
        if self._watched is not None:
            self._watched.add(digest)

    def spares(self, digest: bytes) -> bool:
        """Whether a block is no garbage of older epochs, whatever a collection thinks: it is
        counted here, or was referred to since the collection began."""
        return self._watched is None or digest in self._watched or digest in self._counts

    def begin(self) -> None:
        """A transaction begins."""
        self._undo.clear()
        self._before = self._epoch, self._counts

    def roll_back(self) -> None:
        """The transaction came to nothing."""
        for counts, digest, count in reversed(self._undo):
            if count is None:
                counts.pop(digest, None)
            else:
                counts[digest] = count
        self._undo.clear()
        self._epoch, self._counts = self._before
        self._unused = {digest: None for digest, count in self._counts.items() if not count}

    def enter(self, epoch: int) -> None:
        """What follows belongs to `epoch`; another one than before means that that was sealed."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._counts = dict.fromkeys(self._unused, 0)

    def born(self, digest: bytes) -> None:
        """A block is stored that was not there; `hold` counts its first reference."""
        if len(self._counts) < _MOST:
            self._set(digest, 0)

    def hold(self, digest: bytes) -> None:
        """One more reference."""
        self.note(digest)
        count = self._counts.get(digest)
        if count is not None:
            self._set(digest, count + 1)

    def let_go(self, digest: bytes) -> None:
        """One reference less."""
        count = self._counts.get(digest)
        if count is not None:
            self._set(digest, count - 1)

    def deleted(self, digest: bytes) -> None:
        """An unused block was taken out of the store."""
        self._undo.append((self._counts, digest, self._counts.pop(digest)))
        del self._unused[digest]

    def unused(self, most: int) -> list[bytes]:
        """Blocks that nothing refers to, at most so many."""
        return list(islice(self._unused, most))

    @property
    def has_unused(self) -> bool:
        return bool(self._unused)

    def _set(self, digest: bytes, count: int) -> None:
        self._undo.append((self._counts, digest, self._counts.get(digest)))
        self._counts[digest] = count
        if count:
            self._unused.pop(digest, None)
        else:
            self._unused[digest] = None
