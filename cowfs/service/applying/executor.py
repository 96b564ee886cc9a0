"""Carries out the plan of an apply in a real directory.

Threading: an `Executor` belongs to one thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator

from cowfs.format import keys, records
from cowfs.service.applying import attributes
from cowfs.service.applying.contents import LostContentError, pieces, same_bytes
from cowfs.service.applying.plan import Name, Plan
from cowfs.store.snapshot import Snapshot
from cowfs.store.steps import reached
from cowfs.volume.base import STAGING, Base, BaseEntry, fingerprint, same_file
from cowfs.volume.importing import base_record, recorded_fingerprint

_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Mover = Callable[[Callable[[], os.stat_result], records.BaseRecord, int, bytes], None]
"""Runs a rename that returns the lstat afterwards, and records the new place (parent, name)."""


class Executor:
    """Carries a plan out. Every step does only what is not done yet.

    problems: {"path", "detail"} of what could not be done exactly. current: the path at work.
    """

    def __init__(
        self,
        base: Base,
        before: Snapshot,
        after: Snapshot,
        plan: Plan,
        progress: Callable[..., None],
        move: Mover,
    ) -> None:
        self._base = base
        self._move = move
        self._before = before
        self._after = after
        self._plan = plan
        self._progress = progress
        self._total = (
            len(plan.gone_names) + len(plan.new_names) + len(plan.rewritten) + len(plan.touched)
        )
        self._done = 0
        self._staging = -1
        self.current = b""
        self.problems: list[dict[str, str]] = []

    def run(self) -> dict[Name, records.BaseRecord]:
        """Do it; returns what now lies under every name that was looked at. Raises OSError."""
        self._staging = self._open_staging()
        reached("apply.staging-made")
        try:
            for path, name, ino in self._sorted(self._before, self._plan.gone_names, deepest=True):
                self._step(path)
                self._take_away(path, name, ino)
            for path, name, ino in self._coming():
                self._step(path)
                with self._lost_is_a_problem(path):
                    self._put_in_place(path, name, ino)
            for ino in sorted(self._plan.rewritten):
                self._step(b"")
                with self._lost_is_a_problem(next((p for p, _ in self._places(ino)), b"")):
                    self._rewrite(ino)
            self._bring_back()
            self._set_attributes()
            reached("apply.attributes-set")
            self._close_staging()
            reached("apply.staging-removed")
        finally:
            os.close(self._staging)
        return self._look()

    # -- walking ------------------------------------------------------------------------------

    def _step(self, path: bytes) -> None:
        self.current = path
        self._done += 1
        if self._done % 64 == 0 or self._done == self._total:
            text = path.decode("utf-8", "surrogateescape")
            self._progress(phase="apply", done=self._done, total=self._total, path=text)

    @contextlib.contextmanager
    def _lost_is_a_problem(self, path: bytes) -> Iterator[None]:
        """A file that nobody has the content of does not keep the others from being written."""
        try:
            yield
        except LostContentError as error:
            if not any(row["path"] == os.fsdecode(path) for row in self.problems):
                self._problem(path, f"not written: {error.strerror}")

    def _problem(self, path: bytes, detail: str) -> None:
        self.problems.append({"path": path.decode("utf-8", "surrogateescape"), "detail": detail})

    @staticmethod
    def _sorted(
        snapshot: Snapshot, names: dict[Name, int], *, deepest: bool
    ) -> list[tuple[bytes, Name, int]]:
        rows = []
        for name, ino in names.items():
            above = snapshot.directory_path(name[0])
            if above is None:
                above = _base_path(snapshot, name[0])
            if above is not None:
                rows.append((above + b"/" + name[1] if above else name[1], name, ino))
        rows.sort(key=lambda row: (row[0].count(b"/"), row[0]), reverse=deepest)
        return rows

    def _coming(self) -> list[tuple[bytes, Name, int]]:
        """The new names: directories first, since other names of a file may come with them."""
        rows = self._sorted(self._after, self._plan.new_names, deepest=False)
        return sorted(rows, key=lambda row: not self._is_dir_after(row[2]))

    @contextlib.contextmanager
    def _parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """(descriptor of the directory, name)."""
        directory, _, name = path.rpartition(b"/")
        fd = self._base.open_directory(directory)
        try:
            yield fd, name
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _changing(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """As `_parent`, to make or to remove the name."""
        with self._parent(path) as (fd, name):
            attributes.let_change(fd)
            yield fd, name

    def _lstat(self, path: bytes) -> os.stat_result | None:
        try:
            with self._parent(path) as (fd, name):
                return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    # -- names that go ------------------------------------------------------------------------

    def _known(self, name: Name) -> records.BaseRecord | None:
        """What the base had under a name when it was last looked at."""
        value = self._before.reader.get("base", keys.base_key(*name))
        return records.unpack_base(value) if value else None

    def _take_away(self, path: bytes, name: Name, ino: int) -> None:
        """A name goes or will mean something else. A file that is replaced by a file keeps its
        name until the new one is renamed over it."""
        st, record = self._lstat(path), self._known(name)
        if st is None or record is None or (st.st_dev, st.st_ino) != (record.dev, record.st_ino):
            return  # done by an interrupted run, or made by somebody else
        is_dir = stat.S_ISDIR(st.st_mode)
        if record.ino != ino or not (is_dir or same_file(st, recorded_fingerprint(record))):
            if name not in self._plan.new_names:
                self._problem(path, "not removed: it was changed outside")
            return
        after = self._plan.new_names.get(name)
        replaced = after is not None and not is_dir and not self._is_dir_after(after)
        reached("apply.before-take-away")
        with self._changing(path) as (fd, last):
            if ino in self._plan.moved and not self._staged(ino):
                self._stage(fd, last, ino, record, is_dir)
                reached("apply.staged")
            elif is_dir:
                self._remove_directory(fd, last, path)
            if not is_dir and not replaced:
                os.unlink(last, dir_fd=fd)
        reached("apply.removed")

    def _is_dir_after(self, ino: int) -> bool:
        record = self._after.inode(ino)
        return record is not None and stat.S_ISDIR(record.mode)

    def _stage(
        self, fd: int, name: bytes, ino: int, record: records.BaseRecord, is_dir: bool
    ) -> None:
        """Directories are renamed into the staging directory, files get a link there."""
        staged = _staged_name(ino)

        def move() -> os.stat_result:
            if is_dir:
                # Its own `..` changes, too.
                below = os.open(name, _PATH, dir_fd=fd)
                try:
                    attributes.let_change(below)
                finally:
                    os.close(below)
                os.rename(name, staged, src_dir_fd=fd, dst_dir_fd=self._staging)
            else:
                os.link(
                    name, staged, src_dir_fd=fd, dst_dir_fd=self._staging, follow_symlinks=False
                )
            return os.stat(staged, dir_fd=self._staging, follow_symlinks=False)

        self._move(move, record, *staging_place(ino))

    def _remove_directory(self, fd: int, name: bytes, path: bytes) -> None:
        try:
            os.rmdir(name, dir_fd=fd)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._problem(path, "not removed: it holds things that were made outside")

    def _staged(self, ino: int) -> bool:
        return _exists(self._staging, _staged_name(ino))

    # -- names that come ----------------------------------------------------------------------

    def _put_in_place(self, path: bytes, name: Name, ino: int) -> None:
        record = self._after.inode(ino)
        assert record is not None
        st = self._lstat(path)
        if st is not None:
            if self._is_right(path, name, st, ino, record):
                return
            if not self._replaceable(st, name):
                self._move_aside(path)
        else:
            self._make_parents(name[0])
        reached("apply.before-placing")
        with self._changing(path) as (fd, last):
            if self._staged(ino):
                self._place_staged(fd, last, name, ino)
            elif stat.S_ISDIR(record.mode):
                os.mkdir(last, 0o700, dir_fd=fd)
                if ino not in self._plan.created:
                    self._refill(ino)
            elif self._make(path, ino, record):
                reached("apply.made")
                os.rename(_new_name(ino), last, src_dir_fd=self._staging, dst_dir_fd=fd)
        reached("apply.placed")

    def _refill(self, directory: int) -> None:
        """A directory that should have moved was removed outside: all in it is to be made anew."""
        waiting = [directory]
        while waiting:
            ino = waiting.pop()
            self._plan.touched.add(ino)
            waiting += [child for _, child, _ in self._after.entries(ino)]

    def _make_parents(self, ino: int) -> None:
        """Make a directory that was removed or replaced outside, while the workspace kept what is
        in it."""
        path = self._after.directory_path(ino)
        if not path:
            return
        above = self._after.links(ino)[0][0]
        self._make_parents(above)
        st = self._lstat(path)
        if st is not None:
            if stat.S_ISDIR(st.st_mode):
                return
            self._move_aside(path)
        with self._changing(path) as (fd, last):
            os.mkdir(last, 0o700, dir_fd=fd)
        self._plan.touched.add(ino)
        self._plan.directories.add(above)

    def _bring_back(self) -> None:
        """Names that are neither new nor old, but were removed or replaced outside: the workspace
        kept them."""
        done: set[int] = set()
        while waiting := self._plan.touched - done:
            done |= waiting
            for ino in sorted(waiting):
                self._bring_back_one(ino)

    def _bring_back_one(self, ino: int) -> None:
        for path, name in self._places(ino):
            known = self._known(name)
            # Those with other content were replaced already.
            shadowed = known is not None and not known.ino and ino not in self._plan.rewritten
            if self._lstat(path) is None or shadowed:
                self._step(path)
                with self._lost_is_a_problem(path):
                    if shadowed:
                        self._must_have(path, ino)
                    self._put_in_place(path, name, ino)
                self._plan.directories.add(name[0])

    def _must_have(self, path: bytes, ino: int) -> None:
        """Raises LostContentError before something is moved aside for nothing."""
        record = self._after.inode(ino)
        if record is not None and stat.S_ISREG(record.mode) and not self._twin(path, ino, record):
            for _ in pieces(self._after, record):
                pass

    def _replaceable(self, st: os.stat_result, name: Name) -> bool:
        """Whether what lies there is the old file, whose content is in the store."""
        record, old = self._known(name), self._plan.gone_names.get(name)
        return (
            record is not None
            and record.ino == old
            and not stat.S_ISDIR(st.st_mode)
            and same_file(st, recorded_fingerprint(record))
        )

    def _place_staged(self, fd: int, last: bytes, name: Name, ino: int) -> None:
        """Move a staged thing to its new name; a file with further names keeps its link there."""
        staged = _staged_name(ino)
        more = sum(1 for other in self._plan.new_names.values() if other == ino) > 1
        st = os.stat(staged, dir_fd=self._staging, follow_symlinks=False)
        after = self._after.inode(ino)
        content = after.content if after and stat.S_ISREG(after.mode) else 0
        record = base_record(BaseEntry(name[1], st, b"", {}), ino, content)

        def move() -> os.stat_result:
            source = staged
            if more and not stat.S_ISDIR(st.st_mode):
                source = self._link_again(staged)
            os.rename(source, last, src_dir_fd=self._staging, dst_dir_fd=fd)
            return os.stat(last, dir_fd=fd, follow_symlinks=False)

        self._move(move, record, *name)

    def _is_right(
        self, path: bytes, name: Name, st: os.stat_result, ino: int, record: records.InodeRecord
    ) -> bool:
        """Whether what has to lie there does: it always did, or an interrupted run put it there."""
        if stat.S_IFMT(st.st_mode) != stat.S_IFMT(record.mode):
            return False
        if self._staged(ino):
            # It has further names to get; this one may be of an interrupted run.
            staged = os.stat(_staged_name(ino), dir_fd=self._staging, follow_symlinks=False)
            return os.path.samestat(st, staged)
        known = self._known(name)
        if known is not None and known.ino not in (ino, 0) and same_place(st, known):
            return False  # what lay there before and goes, however much it looks the same
        if stat.S_ISDIR(st.st_mode):
            return True
        if stat.S_ISLNK(st.st_mode):
            with self._parent(path) as (fd, last):
                return os.readlink(last, dir_fd=fd) == record.target
        if stat.S_ISREG(st.st_mode):
            if ino in self._plan.rewritten and fingerprint(st)[:4] in self._fingerprints(ino):
                return True  # the old file, which is still to be rewritten
            if known is not None and known.ino == ino and ino not in self._plan.rewritten:
                return same_file(st, recorded_fingerprint(known))
            return self._is_its_base(name, st, record) or same_bytes(
                self._base, path, st, self._after, record
            )
        return st.st_rdev == record.rdev

    def _is_its_base(self, name: Name, st: os.stat_result, record: records.InodeRecord) -> bool:
        """Whether the file there is the very one that the content comes from: it was changed
        outside, adopted, and not written since."""
        known = self._known(name)
        return (
            known is not None
            and known.content == record.content
            and record.base_size == record.size == known.size
            and same_file(st, recorded_fingerprint(known))
            and not any(True for _ in self._after.extents(record.content))
        )

    def _same_bytes(self, path: bytes, st: os.stat_result, record: records.InodeRecord) -> bool:
        return same_bytes(self._base, path, st, self._after, record)

    def _move_aside(self, path: bytes) -> None:
        """Something that the workspace does not know lies where a name has to come: keep it."""
        with self._changing(path) as (fd, name):
            for number in range(1, 1000):
                aside = name[:200] + b".outside-%d" % number
                if not _exists(fd, aside):
                    os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
                    kept = aside.decode("utf-8", "surrogateescape")
                    self._problem(path, f"was made or changed outside; kept as {kept}")
                    return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    def _twin(self, path: bytes, ino: int, record: records.InodeRecord) -> bytes | None:
        """Another name of a file that is in place already."""
        if record.nlink < 2:
            return None
        ours = self._fingerprints(ino)
        for other, name in self._places(ino):
            st = self._lstat(other) if other != path else None
            if st is not None and (
                fingerprint(st)[:4] in ours or self._is_right(other, name, st, ino, record)
            ):
                return other
        return None

    def _make(self, path: bytes, ino: int, record: records.InodeRecord) -> bool:
        """Make a file, link or special file in the staging directory; False when refused."""
        mode, staged = record.mode, _new_name(ino)
        self._forget_new(ino)
        twin = self._twin(path, ino, record)
        if twin is not None:
            with self._parent(twin) as (fd, name):
                os.link(
                    name, staged, src_dir_fd=fd, dst_dir_fd=self._staging, follow_symlinks=False
                )
        elif stat.S_ISREG(mode):
            self._write_new(ino, record)
        elif stat.S_ISLNK(mode):
            os.symlink(record.target, staged, dir_fd=self._staging)
        else:
            try:
                os.mknod(staged, mode, record.rdev, dir_fd=self._staging)
            except PermissionError as error:
                self._problem(path, f"a device cannot be made: {error.strerror}")
                return False
        return True

    # -- contents -----------------------------------------------------------------------------

    def _forget_new(self, ino: int) -> None:
        """Remove what an interrupted run was making: it may be incomplete."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_new_name(ino), dir_fd=self._staging)

    def _write_new(self, ino: int, record: records.InodeRecord) -> None:
        """A file in the staging directory with the content it shall have."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(_new_name(ino), flags, 0o600, dir_fd=self._staging)
        try:
            for offset, piece in pieces(self._after, record):
                os.pwrite(fd, piece, offset)
            os.ftruncate(fd, record.size)
        finally:
            os.close(fd)

    def _rewrite(self, ino: int) -> None:
        """Replace a file's content atomically under all its names, which stay one file."""
        record = self._after.inode(ino)
        assert record is not None
        places = self._places(ino)
        stats = [(path, name, self._lstat(path)) for path, name in places]
        if self._is_one_right_file(stats, record):
            return
        reached("apply.before-rewrite")
        ours = self._fingerprints(ino)
        self._forget_new(ino)
        self._write_new(ino, record)
        reached("apply.rewrite-made")
        for path, name, st in stats:
            self.current = path
            if st is not None and not (
                stat.S_ISREG(st.st_mode)
                and (fingerprint(st)[:4] in ours or self._same_bytes(path, st, record))
            ):
                self._move_aside(path)
            if st is None:
                self._make_parents(name[0])
            with self._changing(path) as (fd, last):
                copy = self._link_again(_new_name(ino))
                os.rename(copy, last, src_dir_fd=self._staging, dst_dir_fd=fd)
            reached("apply.rewrite-placed")
            self._plan.directories.add(name[0])  # the rename changed its times
        os.unlink(_new_name(ino), dir_fd=self._staging)
        reached("apply.rewritten")

    def _places(self, ino: int) -> list[tuple[bytes, Name]]:
        """(path, name) of every name of an inode in the new state."""
        found = []
        for name in self._after.links(ino):
            above = self._after.directory_path(name[0])
            if above is not None:
                found.append((above + b"/" + name[1] if above else name[1], name))
        return found

    def _is_one_right_file(
        self, stats: list[tuple[bytes, Name, os.stat_result | None]], record: records.InodeRecord
    ) -> bool:
        """Whether all names are there, are one file, and that has the right bytes."""
        if not stats or len({(st.st_dev, st.st_ino) if st else None for _, _, st in stats}) != 1:
            return False
        path, _, st = stats[0]
        if st is None or not stat.S_ISREG(st.st_mode):
            return False
        if any(self._is_its_base(name, st, record) for _, name, _ in stats):
            return True
        return self._same_bytes(path, st, record)

    def _fingerprints(self, ino: int) -> set[tuple[int, ...]]:
        """The base file of an inode as it was last seen, without ctime: what may be replaced."""
        names = {*self._before.links(ino), *self._after.links(ino)} | {
            n for n, i in self._plan.gone_names.items() if i == ino
        }
        known = (self._known(name) for name in names)
        return {recorded_fingerprint(k)[:4] for k in known if k is not None and k.ino == ino}

    def _set_attributes(self) -> None:
        """Of everything that was touched, and of the directories whose entries changed."""
        found = []
        for ino in sorted(self._plan.touched | self._plan.directories):
            record = self._after.inode(ino)
            paths = self._after.names_of(ino) if ino != 1 else [b"."]
            if record is not None and paths:
                found.append((paths[0], ino, record))
        for path, ino, record in attributes.in_order(found):
            self._step(path)
            attributes.set_one(self._base, path, record, self._after.xattrs(ino), self._problem)

    # -- staging and results ------------------------------------------------------------------

    def _open_staging(self) -> int:
        attributes.let_change(self._base.fd)
        with contextlib.suppress(FileExistsError):
            os.mkdir(STAGING, 0o700, dir_fd=self._base.fd)
        return self._base.open_directory(STAGING)

    def _link_again(self, staged: bytes) -> bytes:
        """Another link of a staged thing, to be renamed into place; returns its name."""
        copy, directory = staged + b".link", self._staging
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy, dir_fd=directory)  # of an interrupted run
        os.link(staged, copy, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        return copy

    def _close_staging(self) -> None:
        for name in os.listdir(self._staging):
            number = name.removesuffix(".link").removesuffix(".new")
            st = os.stat(name, dir_fd=self._staging, follow_symlinks=False)
            if number.isdigit() and not stat.S_ISDIR(st.st_mode):
                os.unlink(name, dir_fd=self._staging)  # a link, or an interrupted run's copy
        attributes.let_change(self._base.fd)
        try:
            os.rmdir(STAGING, dir_fd=self._base.fd)
        except OSError:
            text = STAGING.decode()
            self._problem(STAGING, f"{text} holds things that found no place; look at them")
        record = self._after.inode(1)
        if record is not None:
            if stat.S_IMODE(os.fstat(self._base.fd).st_mode) != stat.S_IMODE(record.mode):
                os.fchmod(self._base.fd, stat.S_IMODE(record.mode))
            os.utime(".", ns=(record.atime, record.mtime), dir_fd=self._base.fd)

    def _look(self) -> dict[Name, records.BaseRecord]:
        """What lies under every name of everything touched, for the base table."""
        found: dict[Name, records.BaseRecord] = {}
        inodes = self._plan.touched | self._plan.directories
        for ino in inodes:
            record = self._after.inode(ino)
            if record is None:
                continue
            for parent, name in self._after.links(ino):
                above = self._after.directory_path(parent)
                if above is None:
                    continue
                path = above + b"/" + name if above else name
                st = self._lstat(path)
                if st is None or stat.S_IFMT(st.st_mode) != stat.S_IFMT(record.mode):
                    continue
                content = record.content if stat.S_ISREG(record.mode) else 0
                entry = BaseEntry(name, st, b"", {})
                found[(parent, name)] = base_record(entry, ino, content)
        return found


def _base_path(snapshot: Snapshot, ino: int) -> bytes | None:
    """Where the base has a directory that neither state has, None when it has not."""
    parts: list[bytes] = []
    while ino != 1:
        value = snapshot.reader.get("origin", keys.pack_id(ino))
        if value is None:
            return None
        origin = records.unpack_origin(value)
        parts.append(origin.name)
        ino = origin.parent
    return b"/".join(reversed(parts))


def same_place(st: os.stat_result, known: records.BaseRecord) -> bool:
    """Whether a thing is the one that a base record was made of (by inode number)."""
    return (st.st_dev, st.st_ino) == (known.dev, known.st_ino)


def staging_place(ino: int) -> Name:
    """Where a staged thing lies, as (parent, name) of the base table."""
    return 1, STAGING + b"/" + _staged_name(ino)


def _staged_name(ino: int) -> bytes:
    """Of a thing that waits in the staging directory for its new place."""
    return b"%d" % ino


def _new_name(ino: int) -> bytes:
    """Of a file that is being made."""
    return b"%d.new" % ino


def _exists(fd: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
