"""Blocks that no extent refers to any more: mark and sweep.

Nothing counts references, so all extents are looked at, and every block's header for what it is a
delta to or a part of. Marked is what extents name, and what marked blocks refer to. The rest goes:
deltas first, then parts, so that neither is ever without what it needs. What the writer refers to
while this goes on counts as marked (`Ledger.watch`), so no block is lost that is written again in
this moment.

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

_STANDING, _PARTS, _DELTAS = 0, 1, 2
"""Kinds of blocks; each may need one of a kind before it."""


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
        self._needed = {_DELTAS: Marks(), _PARTS: Marks()}
        self._parts = False

    def steps(self) -> Iterator[Step]:
        """Do it piece by piece; between two pieces anything may happen to the store. Blocks that
        are `gone` must be taken out, or not, before the next piece.

        Raises DamagedRecordError: an extent that cannot be read may name any block.
        """
        yield from self._extents()
        yield from self._blocks(_DELTAS)
        if self._parts:
            yield from self._blocks(_PARTS)
        yield from self._blocks(_STANDING)

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

    def _blocks(self, kind: int) -> Iterator[Step]:
        """Mark what marked blocks of a kind need, and give the others of it."""
        at: bytes | None = b""
        done = 0
        while at is not None:
            found, at, total = block_headers(self._store, at, _BLOCKS)
            done += len(found)
            gone = []
            for header in found:
                self._parts |= header.codec == codec.PART
                if _kind(header) != kind:
                    continue
                if not self._is_marked(header.digest, kind):
                    gone.append(header)
                elif header.reference is not None:
                    self._needed[kind].add(header.reference)
            what = "deltas" if kind == _DELTAS else "blocks"
            for start in range(0, len(gone), _TAKEN):
                yield Step(what, done, max(total, done), tuple(gone[start : start + _TAKEN]))
            if not gone:
                yield Step(what, done, max(total, done))

    def _is_marked(self, digest: bytes, kind: int) -> bool:
        """Whether an extent names a block, or a block of a later kind needs it."""
        later = (marks for at, marks in self._needed.items() if at > kind)
        return self._marks.has(digest) or any(marks.has(digest) for marks in later)


def _kind(header: Header) -> int:
    if header.reference is None:
        return _STANDING
    return _PARTS if header.codec == codec.PART else _DELTAS
