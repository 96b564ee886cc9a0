"""Stored values of blocks where they lie in LMDB's map: nothing is copied to look at one.

Threading: owned by one thread.
"""

from __future__ import annotations

from typing import Any, cast

import lmdb

from cowfs.store.env import Store


class MappedBlocks:
    """The table `block`, in a read transaction of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._table = cast(Any, store.tables["block"].handle)
        self._txn: lmdb.Transaction | None = None

    def get(self, digest: bytes) -> memoryview | None:
        """The stored value as it is in the newest commit since `release`, not verified; valid
        until then."""
        if self._txn is None:
            self._txn = self._store.env.begin(buffers=True)
        return cast("memoryview | None", self._txn.get(digest, db=self._table))

    def release(self) -> None:
        """No value is used any more."""
        if self._txn is not None:
            self._txn.abort()
            self._txn = None
