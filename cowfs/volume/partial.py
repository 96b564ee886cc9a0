"""Restoring some paths only: the head's tree is edited to match a checkpoint there.

The edit is one transaction group after a rescue checkpoint, so a crash leaves the state before or
the state after. File data is not copied: a file gets its old blocks back by their extents. (One
exception to both: a file that was moved, with blocks that still come from an unsealed base file,
is sealed first, since its copy cannot share the base file.)

Threading: owned by the volume's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from cowfs.errors import DamagedRecordError, UnknownPathError
from cowfs.format import keys, records
from cowfs.store.snapshot import Snapshot
from cowfs.store.steps import reached
from cowfs.tree.changes import differing, same_content
from cowfs.volume import history, sealing
from cowfs.volume.history import ALONE, NOBODY, Audience, Author, Companion, Swapped
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError
from cowfs.volume.thinned import refuse_thinned
from cowfs.volume.view import View
from cowfs.volume.volume import Volume

_DIRECTORY = 4


def restore_paths(
    volume: Volume,
    author: Author,
    target: records.CheckpointRecord,
    branch: records.BranchRecord,
    paths: list[bytes],
    exclude: list[bytes],
    audience: Audience = NOBODY,
    companion: Companion = ALONE,
) -> Swapped:
    """Make `paths` (b"" is everything) what they were in `target`, but for what `exclude` matches.

    A pattern of `exclude` is an fnmatch pattern of a whole path or of any single name in it.
    What is damaged now is replaced; what was damaged in `target` stays as it is now, and is
    reported. Raises UnknownPathError for a path that neither state has, DamagedRecordError for one
    that is damaged in `target` itself, ThinnedError, StoreFullError, and what the companion raises.
    """
    view = volume.main
    for path in paths:
        _look_into(view, path)
    volume.sync()
    lineage = volume.reader.lineage(target.epoch)
    _list_moved(view, Snapshot(volume.reader, lineage))
    volume.sync()
    then = Snapshot(volume.reader, lineage)
    for path in paths:
        if (found := _find(then, path)) is not None:
            then.inode(found[0])
        elif _find(view.snapshot, path) is None:
            raise UnknownPathError(
                path=path.decode("utf-8", "surrogateescape"),
                where=f"{target.id[:8]} nor in the present state",
            )
    companion.check()
    refuse_thinned(
        volume, target, paths, lambda path: next(_matching(path, exclude), None) is not None
    )
    rescue = history.rescue(volume, author, target, branch, "restore")
    volume.sync()
    reached("restore-paths.rescued")
    editor = _Editor(view, Snapshot(volume.reader, lineage), exclude)
    view.editing = True
    try:
        outermost = _outermost(paths)
        for editor.adding in (False, True):
            for path in outermost:
                editor.restore(path)
        reached("restore-paths.edited")
        volume.audit.restored(author, "restore", target.id, paths, view.head)
        companion.add(volume.extra)
        volume.sync()
        reached("restore-paths.durable")
    finally:
        view.editing = False
        volume.audit.forget_places()
    before = Snapshot(volume.reader, view.lineage.at(rescue.epoch))
    touched = differing(before, view.snapshot)
    invalidation = history.invalidation_of(view, touched)
    invalidation.announcement = audience.announcement(before, view.snapshot, touched)
    return Swapped(rescue, touched, invalidation, frozenset(editor.left))


def _look_into(view: View, path: bytes) -> None:
    """Import the base directories on the way to a path: snapshots know only what was listed."""
    ino = 1
    for name in path.split(b"/") if path else ():
        try:
            packed = (view.directory(ino).entries or {}).get(name)
        except PosixError:
            return
        if packed is None or packed & 15 != _DIRECTORY:
            return
        ino = packed >> 4


def _outermost(paths: list[bytes]) -> list[bytes]:
    """The paths without those that lie below another one of them."""
    chosen = set(paths)
    return [path for path in sorted(chosen) if chosen.isdisjoint(_parents(path))]


def _parents(path: bytes) -> list[bytes]:
    """Every path above one, b"" for the root included."""
    parts = path.split(b"/") if path else []
    return [b"/".join(parts[:depth]) for depth in range(len(parts))]


def _list_moved(view: View, then: Snapshot) -> None:
    """Import what lies below directories that were elsewhere then: they may have to be copied."""
    waiting = []
    for parent, name in differing(view.snapshot, then).names:
        try:
            old = then.lookup(parent, name)
        except DamagedRecordError:
            continue
        if old is not None and old[1] == _DIRECTORY:
            waiting.append(old[0])
    while waiting:
        try:
            entries = view.directory(waiting.pop()).entries or {}
        except PosixError:
            continue  # it is not there any more, so it was listed when it was removed
        waiting += [packed >> 4 for packed in entries.values() if packed & 15 == _DIRECTORY]


def _find(snapshot: Snapshot, path: bytes) -> tuple[int, int] | None:
    """(ino, kind) of a path in a snapshot."""
    found = (1, _DIRECTORY)
    for name in path.split(b"/") if path else ():
        below = snapshot.lookup(found[0], name)
        if below is None:
            return None
        found = below
    return found


def _matching(path: bytes, patterns: list[bytes]) -> Iterator[bytes]:
    """The patterns that a path, or the last name of it, matches."""
    whole, name = path.decode("latin-1"), path.rpartition(b"/")[2].decode("latin-1")
    for pattern in patterns:
        wanted = pattern.decode("latin-1")
        if fnmatchcase(whole, wanted) or fnmatchcase(name, wanted):
            yield pattern


class _Editor:
    """Edits the view towards a snapshot, in two passes over all paths.

    adding: False in the first pass, which restores what is still in its place; the second one also
    adds and removes names. So a name that comes back is a hard link of a file that was restored
    under another name, whichever is come to first.
    """

    def __init__(self, view: View, then: Snapshot, exclude: list[bytes]) -> None:
        self.view = view
        self.then = then
        self.now = view.snapshot
        self.exclude = exclude
        self.left: set[bytes] = set()
        """Those patterns of `exclude` by which something was left that differs."""
        self.adding = False
        self.restored: dict[int, Inode] = {}
        self.interesting = self._interesting()

    def _interesting(self) -> set[int]:
        """Directories below which something differs, in either state."""
        touched = differing(self.now, self.then)
        waiting = {parent for parent, _ in touched.names} | touched.inodes
        found: set[int] = set()
        while waiting:
            ino = waiting.pop()
            found.add(ino)
            for snapshot in (self.now, self.then):
                try:
                    waiting.update(p for p, _ in snapshot.links(ino) if p not in found)
                except DamagedRecordError:
                    continue
        return found

    def restore(self, path: bytes) -> None:
        """Restore one path and everything below it."""
        directory = self.view.inode(1)
        if not path:
            self._sync_inode(directory, 1)
            self._sync_children(directory, 1, b"")
            return
        above, done = 1, b""
        *parents, name = path.split(b"/")
        for part in parents:
            found = self.then.lookup(above, part)
            done = done + b"/" + part if done else part
            entries = self.view.directory(directory.ino).entries or {}
            packed = entries.get(part)
            if packed is not None and packed & 15 == _DIRECTORY:
                directory = self.view.directory(packed >> 4)
            elif found is None or not self.adding:
                return  # not there then, and nothing below it now
            else:
                if packed is not None:
                    self._remove(directory, part, done)
                directory = self._add(directory, above, part, found[0])
            above = found[0] if found is not None else 0
        found = self.then.lookup(above, name) if above else None
        self._sync_entry(directory, above, name, found, path)

    def _leaves(self, path: bytes, *, differs: bool = True) -> bool:
        """Whether something has to stay as it is; `left` gets the patterns if it differs."""
        found = set(_matching(path, self.exclude))
        if differs:
            self.left |= found
        return bool(found)

    def _sync_children(self, directory: Inode, then_ino: int, path: bytes) -> None:
        """Make the entries of a directory those that `then_ino` had."""
        if directory.ino == then_ino and directory.ino not in self.interesting:
            return
        damaged: dict[bytes, str] = {}
        entries = self.then.entries(then_ino, damaged.__setitem__)
        old = {name: (ino, kind) for name, ino, kind in entries}
        now = dict(self.view.directory(directory.ino).entries or {})
        for name, detail in damaged.items():
            self._report(path + b"/" + name if path else name, detail)
        for name in sorted((old.keys() | now.keys()) - damaged.keys()):
            below = path + b"/" + name if path else name
            self._sync_entry(directory, then_ino, name, old.get(name), below)
        self._sync_times(directory, then_ino)

    def _report(self, path: bytes, detail: str) -> None:
        if self.adding:
            self.view.volume.problem("damaged", path, f"not restored: {detail}")

    def _is_readable(self, ino: int, path: bytes) -> bool:
        """Whether the old state has an inode that can be read; else that is reported."""
        try:
            return self.then.inode(ino) is not None
        except DamagedRecordError as error:
            self._report(path, str(error))
            return False

    def _sync_entry(
        self,
        directory: Inode,
        then_parent: int,
        name: bytes,
        found: tuple[int, int] | None,
        path: bytes,
    ) -> None:
        """Make one name what it was (`found`: its old inode and kind) in `then_parent`."""
        entries = self.view.directory(directory.ino).entries or {}
        packed = entries.get(name)
        ino = found[0] if found is not None else None
        differs = ino in self.interesting or (packed >> 4 if packed is not None else None) != ino
        if self._leaves(path, differs=differs):
            return
        if found is None:
            if packed is not None and self.adding:
                self._remove(directory, name, path)
            return
        ino, kind = found
        same_place = packed is not None and (
            packed >> 4 == ino or (packed & 15 == _DIRECTORY and kind == _DIRECTORY)
        )
        if packed is not None and same_place and not self.view.named(packed).damaged:
            inode = self.view.inode(packed >> 4)
            if ino in self.interesting and not self._is_readable(ino, path):
                return
            if inode.ino != ino or ino in self.interesting:
                self._sync_inode(inode, ino)
        elif not self.adding:
            return
        else:
            if not self._is_readable(ino, path):
                return
            if packed is not None and not self._remove(directory, name, path):
                return  # something excluded lives below it: it has to stay
            inode = self._add(directory, then_parent, name, ino)
        if kind == _DIRECTORY:
            self._sync_children(inode, ino, path)

    def _remove(self, directory: Inode, name: bytes, path: bytes) -> bool:
        """Remove a name and all below it; False when something excluded had to stay."""
        assert directory.entries is not None
        inode = self.view.named(directory.entries[name])
        if inode.is_dir:
            whole = True
            for child in list(self.view.directory(inode.ino).entries or {}):
                below = path + b"/" + child
                whole = not self._leaves(below) and self._remove(inode, child, below) and whole
            if not whole:
                return False
            directory.nlink -= 1
        self.view.drop_name(directory, name, inode)
        self.view.mark(directory)
        if inode.is_dir or inode.nlink <= 1:
            self.view.remove_inode(inode)
        else:
            inode.nlink -= 1
            if not inode.damaged:
                self.view.mark(inode)
        return True

    def _add(self, directory: Inode, then_parent: int, name: bytes, ino: int) -> Inode:
        """Enter a name for an inode of the old state."""
        inode = self._old_inode(ino, (then_parent, name))
        self.view.directory(directory.ino)
        self.view.add_name(directory, name, inode)
        if inode.is_dir:
            directory.nlink += 1
        else:
            inode.nlink += 1
        self.view.mark(inode)
        self.view.mark(directory)
        return inode

    def _old_inode(self, ino: int, name: tuple[int, bytes]) -> Inode:
        """The inode object for a name that comes back, with `nlink` counting only living names.

        The old number is used unless that inode is alive elsewhere and shows something else: then
        a copy is made, so that the path shows what it showed and no other path changes.
        """
        if ino in self.restored:
            return self.restored[ino]
        record = self.then.inode(ino)
        assert record is not None
        view = self.view
        alive = view.removed.get(ino)  # removed by this edit: the store still shows it
        if alive is None:
            try:
                alive = view.inode(ino)
            except PosixError:
                pass
        if alive is not None and not alive.orphan_epoch:
            linked = set(self.now.links(ino)) & set(self.then.links(ino)) - {name}
            if not alive.is_dir and linked and self._shows_the_same(ino):
                return alive
            inode = self._copy(ino, record)
        else:
            inode = alive or Inode(ino, record)
            now = self.now
            if inode.orphan_epoch:
                # What its content got in that epoch goes, with or without a name.
                now = Snapshot(now.reader, now.lineage.before(inode.orphan_epoch))
                view.revive(inode)
            inode.load(record)
            view.inodes[ino] = inode
            view.removed.pop(ino, None)
            if ino in view.deleted:
                view.deleted.discard(ino)
            else:
                view.created.add(ino)
            self._set_extents(ino, now)
            self._set_xattrs(inode, ino)
            self.interesting.add(ino)  # a directory is empty now
        inode.nlink = 2 if inode.is_dir else 0
        if inode.is_dir:
            inode.entries = {}
        self.restored[ino] = inode
        return inode

    def _shows_the_same(self, ino: int) -> bool:
        """Whether an inode shows what it did; its last access and change aside, which come with
        any loss of a name."""
        try:
            now, then = self.now.inode(ino), self.then.inode(ino)
            assert now is not None
            assert then is not None
            return (
                now._replace(nlink=then.nlink, atime=then.atime, ctime=then.ctime) == then
                and same_content(self.now, self.then, ino)
                and self.now.xattrs(ino) == self.then.xattrs(ino)
            )
        except DamagedRecordError:
            return False

    def _copy(self, ino: int, record: records.InodeRecord) -> Inode:
        """A new inode with the old state's content, extent by extent."""
        view = self.view
        if record.base_size:
            sealing.seal(view, record.content)
            self._commit_seal()
        inode = view.add_inode(record)
        inode.atime, inode.mtime, inode.ctime = record.atime, record.mtime, record.ctime
        inode.base_size = 0
        limit = record.base_size
        for number in self._blocks_of(record):
            digest, counts = self.then.block_source(record.content, number, limit)
            if digest and counts < 65536:
                piece = view.volume.read_block(digest, ino)[:counts]
                inode.own_blocks()[number] = piece
            elif digest:
                key = keys.extent_key(inode.content, number, view.head)
                view.volume.extra.put("extent", key, digest)
        self._set_xattrs(inode, ino)
        return inode

    def _commit_seal(self) -> None:
        """Sealed blocks get their hashes when they are committed; look at them from now on."""
        volume = self.view.volume
        volume.sync()
        self.then = Snapshot(volume.reader, self.then.lineage)
        self.now = self.view.snapshot

    def _blocks_of(self, record: records.InodeRecord) -> list[int]:
        return [number for number, _ in self.then.extents(record.content)]

    def _sync_inode(self, inode: Inode, then_ino: int) -> None:
        """Give a living inode the attributes, extended attributes and content of the old state."""
        record = self.then.inode(then_ino)
        assert record is not None
        view = self.view
        if inode.is_dir:
            for name in ("mode", "uid", "gid", "atime", "mtime", "ctime"):
                setattr(inode, name, getattr(record, name))
        else:
            nlink, entries = inode.nlink, inode.entries
            view.discard_blocks(inode)
            inode.load(record._replace(nlink=nlink))
            inode.entries = entries
            self._set_extents(then_ino, self.now)
        self._set_xattrs(inode, then_ino)
        view.mark(inode)
        self.restored[then_ino] = inode

    def _sync_times(self, directory: Inode, then_ino: int) -> None:
        """Adding and removing names is not to be seen in a restored directory's times."""
        record = self.then.inode(then_ino)
        if record is not None:
            directory.mtime, directory.ctime = record.mtime, record.ctime
            self.view.mark(directory)

    def _set_extents(self, ino: int, now: Snapshot) -> None:
        """Make the extents of an inode's content what the old state saw. now: sees those that it
        has else."""
        record = self.then.inode(ino)
        assert record is not None
        view, content = self.view, record.content

        def source(snapshot: Snapshot, number: int) -> bytes:
            """An extent as it may be written now. Those of epoch 0 are sealed base content and
            count up to base_size only as long as they are of epoch 0."""
            found = snapshot.newest("extent", keys.extent_prefix(content, number))
            return found[1] if found is not None and found[0] else records.EXTENT_BASE

        both = {n for snapshot in (self.then, now) for n, _ in snapshot.extents(content)}
        for number in sorted(both):
            value = source(self.then, number)
            if value != source(now, number):
                key = keys.extent_key(content, number, view.head)
                view.volume.extra.put("extent", key, value)

    def _set_xattrs(self, inode: Inode, then_ino: int) -> None:
        view = self.view
        old = self.then.xattrs(then_ino)
        now = self.now.xattrs(inode.ino)
        for name in now.keys() - old.keys():
            view.xattrs[(inode.ino, name)] = None
        for name, value in old.items():
            if now.get(name) != value or (inode.ino, name) in view.xattrs:
                view.xattrs[(inode.ino, name)] = value
        inode.xattrs = old
