"""Which records no kept state needs: versions of inodes, names, attributes and extents.

The change records of the affected epochs name the things to look at. A thing is decided about as a
whole. A change record goes with its version: what two kept states show of a thing can only differ
when one of them sees a version that the other does not see, and that one is kept with its record
(docs/design/garbage-collection.md).

Threading: as the readers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.service.collecting.planning import Plan
from cowfs.store.env import Cursor
from cowfs.store.snapshot import Reader

Row = tuple[str, bytes]
"""Table and key of a record."""

_LOOKED_AT = 2500
"""Records that one step looks at, as a rule: some 10 ms."""
_TAKEN = 300
"""Records that one step takes out, as a rule."""
_NAMED = 2000
"""Change records that are read at once."""
_MANY = 8
"""A thing with more versions than this is remembered, so that it is looked at once: most epochs
change the top directory, for one."""
_REMEMBERED = 200_000
_EXTENTS, _XATTRS, _LINKS, _INODE = range(4)

Versions = list[tuple[int, bytes]]
"""(epoch, value) of all versions of one thing, newest first."""
_Place = tuple[int, bytes]
"""Where to go on with an inode number: phase, key."""


class Finder:
    """Finds what can go, step by step.

    left: something was left alone for now: an inode that is open without a name, or damaged.
    done, total: affected epochs, for showing progress.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.left = False
        self._affected = plan.affected
        self.done, self.total = 0, len(plan.affected)
        self._at = b""
        self._inodes: dict[int, None] = {}
        self._settled: set[int | tuple[int, bytes]] = set()
        self._names: dict[tuple[int, bytes], None] = {}
        self._place: _Place = (_EXTENTS, b"")
        self._looked = 0
        self._out: list[Row] = []
        self._reader: Reader
        self._held: Collection[int] = ()

    def step(self, reader: Reader, held: Collection[int], plan: Plan | None = None) -> list[Row]:
        """What the next few things have that can go; they are taken out before the next step.

        held: contents that something open without a name has. plan: another one that keeps more;
        where to look stays as it was.
        """
        self._reader, self._held = reader, held
        self.plan = plan or self.plan
        self._looked, self._out = 0, []
        while self._looked < _LOOKED_AT and len(self._out) < _TAKEN and self._next():
            pass
        return self._out

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to look at."""
        return self.done == self.total and not self._inodes and not self._names

    def _next(self) -> bool:
        """Look at one thing; False when there is none left."""
        place: _Place | None = None
        if not (self._names or self._inodes):
            return self._read_changes()
        if self._names:
            with self._leaving_damage():
                self._name(*self._names.popitem()[0])
            return True
        ino = next(iter(self._inodes))
        with self._leaving_damage():
            place = self._inode(ino, self._place)
        if place is None:
            del self._inodes[ino]
        self._place = place or (_EXTENTS, b"")
        return True

    @contextlib.contextmanager
    def _leaving_damage(self) -> Iterator[None]:
        """A thing of which something is damaged stays as it is."""
        try:
            yield
        except DamagedRecordError:
            self.left = True

    def _read_changes(self) -> bool:
        """Read what the affected epochs name; False when that was all."""
        read = 0
        while self.done < self.total and read < _NAMED:
            epoch = keys.pack_id(self._affected[self.done])
            cursor = self._reader.cursor("change")
            found = cursor.set_range(self._at or epoch)
            while found and read < _NAMED and (key := cursor.key()).startswith(epoch):
                kind, ino, name = keys.change_parts(key)
                if kind == keys.KIND_INODE and ino not in self._settled:
                    self._inodes[ino] = None
                elif kind == keys.KIND_DIRENT and (ino, name) not in self._settled:
                    self._names[(ino, name)] = None
                self._at = key + b"\0"
                read += 1
                found = cursor.next()
            if read < _NAMED:
                self.done += 1
                self._at = b""
        self._looked += read
        return read > 0

    # -- things ---------------------------------------------------------------------------------

    def _name(self, parent: int, name: bytes) -> None:
        """A directory entry, and the links that mirror it."""
        prefix = keys.dirent_prefix(parent, name)
        versions = self._versions("dirent", prefix)
        self._remember((parent, name), versions)
        inodes = {records.unpack_dirent(value)[0] for _, value in versions if value}
        links = [keys.link_prefix(ino, parent, name) for ino in inodes]
        rows = [(link, self._superfluous(self._versions("link", link))) for link in links]
        for epoch in self._superfluous(versions):
            self._out.append(("dirent", keys.dirent_key(parent, name, epoch)))
            self._out.append(("change", keys.change_dirent_key(epoch, parent, name)))
        for link, epochs in rows:
            self._out += (("link", link + keys.inverted(epoch)) for epoch in epochs)

    def _inode(self, ino: int, place: _Place) -> _Place | None:
        """What belongs to an inode number, from a place on; returns where to go on, None at the
        end. Its own versions go last: they tell which contents it has."""
        prefix = keys.pack_id(ino)
        versions = self._versions("inode", prefix)
        owners = owners_of(self.plan, ino, versions)
        if not owners.keys().isdisjoint(self._held):
            self.left = True
            return None
        phase, at = place
        enough = self._looked + _LOOKED_AT
        while phase < _INODE:
            for table, below, needed_by in self._parts(phase, at, ino, owners):
                cursor = self._reader.cursor(table)
                for thing, found in things(cursor, below, max(at, below)):
                    shows = table == "extent"
                    for epoch in self._superfluous(found, needed_by, absence_shows=shows):
                        self._out.append((table, thing + keys.inverted(epoch)))
                    self._looked += len(found)
                    if self._looked >= enough or len(self._out) >= _TAKEN:
                        return phase, thing + b"\xff" * 8 + b"\0"
            phase, at = phase + 1, b""
        for epoch in self._superfluous(versions):
            self._out.append(("inode", keys.inode_key(ino, epoch)))
            self._out.append(("change", keys.change_inode_key(epoch, ino)))
        self._remember(ino, versions)
        return None

    def _remember(self, thing: int | tuple[int, bytes], versions: Versions) -> None:
        if len(versions) > _MANY and len(self._settled) < _REMEMBERED:
            self._settled.add(thing)

    def _parts(
        self, phase: int, at: bytes, ino: int, owners: dict[int, int]
    ) -> Iterator[tuple[str, bytes, int]]:
        """(table, prefix, states that need it) of what belongs to an inode number, from a key
        on."""
        if phase == _EXTENTS:
            for content in sorted(owners):
                if (below := keys.pack_id(content)) >= at[:8]:
                    yield "extent", below, owners[content]
        else:
            yield "xattr" if phase == _XATTRS else "link", keys.pack_id(ino), -1

    def _superfluous(
        self, versions: Versions, needed_by: int = -1, *, absence_shows: bool = False
    ) -> list[int]:
        return self.plan.kept.superfluous(
            [(epoch, bool(value)) for epoch, value in versions],
            self.plan.head,
            needed_by=needed_by,
            absence_shows=absence_shows,
        )

    def _versions(self, table: str, prefix: bytes) -> Versions:
        """(epoch, value) of one thing, newest first. Raises DamagedRecordError."""
        found = next(things(self._reader.cursor(table), prefix, prefix), None)
        versions = found[1] if found is not None and found[0] == prefix else []
        self._looked += len(versions) + 1
        return versions


def owners_of(plan: Plan, ino: int, versions: Versions) -> dict[int, int]:
    """By content, the kept states in which an inode has it. The open epoch sees of older ones what
    the state before it sees. Raises DamagedRecordError."""
    kept, owners = plan.kept, {ino: 0}
    seen = kept.seen(epoch for epoch, _ in versions)
    for (epoch, value), by in zip(versions, seen, strict=True):
        if value:
            content = records.unpack_inode(value).content
            by = kept.state(plan.parent) if epoch >= plan.head else by
            owners[content] = owners.get(content, 0) | by
    return owners


def things(cursor: Cursor, prefix: bytes, start: bytes) -> Iterator[tuple[bytes, Versions]]:
    """(key without epoch, versions) of each thing below `prefix`, from `start` on.

    Raises DamagedRecordError.
    """
    thing, versions = b"", Versions()
    more = cursor.set_range(start)
    while more and (key := cursor.key()).startswith(prefix):
        if key[:-8] != thing:
            if versions:
                yield thing, versions
            thing, versions = key[:-8], []
        versions.append((keys.epoch_of(key), cursor.value()))
        more = cursor.next()
    if versions:
        yield thing, versions
