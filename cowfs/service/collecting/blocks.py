"""Blocks that no extent refers to any more: mark and sweep.

Nothing counts references, so all extents are looked at, and every block's header for what it is a
delta to. Marked is what extents name, and what marked deltas refer to. The rest goes: deltas first,
so that a delta is never without its reference. What the writer refers to while this goes on counts
as marked (`Ledger.watch`), so no block is lost that is written again in this moment.

Threading: `Sweep` is used by one thread. What it gives is taken out by the writer thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cowfs.format import codec
from cowfs.store.env import Store
from cowfs.store.headers import Header, block_headers
from cowfs.store.marks import Marks
from cowfs.store.snapshot import Reader

_EXTENTS = 4000
"""Extents that one step looks at."""
_BLOCKS = 2000
"""Blocks that one step looks at."""
_TAKEN = 200
"""Blocks that one transaction deletes; each has up to 17 pages, which LMDB must list."""


@dataclass(frozen=True, slots=True)
class Step:
    """A piece of the work. what: phase; done of total: records. gone: blocks to take out now."""

    what: str
    done: int
    total: int
    gone: tuple[Header, ...] = ()


class Sweep:
    """One mark and sweep. without: keys of extents that count as gone already."""

    def __init__(self, store: Store, without: Collection[bytes] = ()) -> None:
        self._store = store
        self._without = without
        self._marks = Marks()
        self._references = Marks()

    def steps(self) -> Iterator[Step]:
        """Do it piece by piece; between two pieces anything may happen to the store. Blocks that
        are `gone` must be taken out, or not, before the next piece.

        Raises DamagedRecordError: an extent that cannot be read may name any block.
        """
        yield from self._extents()
        yield from self._blocks(deltas=True)
        yield from self._blocks(deltas=False)

    def _extents(self) -> Iterator[Step]:
        at: bytes | None = b""
        done = 0
        while at is not None:
            with Reader(self._store) as reader:
                total = reader.count("extent")
                at, looked = self._mark(reader, at)
            done += looked
            yield Step("marking", done, max(total, done))

    def _mark(self, reader: Reader, at: bytes) -> tuple[bytes | None, int]:
        """Mark what the extents from a key on name; returns where to go on."""
        add, without, looked = self._marks.add, self._without, 0
        cursor = reader.cursor("extent")
        found = cursor.set_range(at)
        while found:
            key = cursor.key()
            if looked == _EXTENTS:
                return key, looked
            looked += 1
            value = cursor.value()
            if len(value) == codec.HASH_SIZE and key not in without:
                add(value)
            found = cursor.next()
        return None, looked

    def _blocks(self, *, deltas: bool) -> Iterator[Step]:
        """Mark what marked deltas refer to and give the other deltas; or give what is left."""
        at: bytes | None = b""
        done = 0
        while at is not None:
            found, at, total = block_headers(self._store, at, _BLOCKS)
            done += len(found)
            gone = []
            for header in found:
                if deltas != (header.reference is not None):
                    continue
                if self._marks.has(header.digest):
                    if header.reference is not None:
                        self._references.add(header.reference)
                elif deltas or not self._references.has(header.digest):
                    gone.append(header)
            what = "deltas" if deltas else "blocks"
            for start in range(0, len(gone), _TAKEN):
                yield Step(what, done, max(total, done), tuple(gone[start : start + _TAKEN]))
            if not gone:
                yield Step(what, done, max(total, done))
