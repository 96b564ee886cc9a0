"""Carries out the plan of an apply in a real directory.

Threading: an `Executor` belongs to one thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import TypeVar

from cowfs.format import keys, records
from cowfs.service.applying.contents import LostContentError, pieces
from cowfs.service.applying.finishing import Finishing, has_names_outside
from cowfs.service.applying.known import Known
from cowfs.service.applying.leaving import Leaving, Mover
from cowfs.service.applying.plan import Name, Plan
from cowfs.service.applying.problems import Problems
from cowfs.service.applying.reach import Reach
from cowfs.service.applying.staging import (
    Staging,
    exists,
    is_reserved,
    new_name,
    staged_name,
)
from cowfs.store.snapshot import Snapshot
from cowfs.store.steps import reached
from cowfs.types import ROOT_INO
from cowfs.volume.base import STAGING, Base, BaseEntry, fingerprint, same_file
from cowfs.volume.importing import base_record, recorded_fingerprint

_DEEPEST = 65536
"""Directories above one another; more are a cycle, in a damaged store."""
_PORTION_FILES = 512
_PORTION_BYTES = 64 << 20
"""How many files are made before the file system is told to store them, and how large."""
T = TypeVar("T")


class Executor:
    """Carries a plan out. Every step does only what is not done yet.

    problems: what could not be done exactly. current: the path at work.
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
        self._reach = Reach(base)
        self._known = Known(self._reach, before, after, plan)
        self._move = move
        self._before = before
        self._after = after
        self._plan = plan
        self._progress = progress
        self._total = (
            len(plan.gone_names) + len(plan.new_names) + len(plan.rewritten) + len(plan.touched)
        )
        self._done = 0
        self._staging: Staging
        self.current = b""
        self.problems = Problems()

    def run(self) -> dict[Name, records.BaseRecord]:
        """Do it; returns what now lies under every name that was looked at. Raises OSError."""
        self._staging = Staging(self._base, resumed=self._plan.resumed, move_aside=self._move_aside)
        reached("apply.staging-made")
        try:
            leaving = Leaving(
                self._reach, self._known, self._staging, self._plan, self.problems, self._move
            )
            for path, name, ino in self._sorted(self._before, self._plan.gone_names, deepest=True):
                self._step(path)
                leaving.take_away(path, name, ino)
            for path, name, ino in self._prepared(self._coming()):
                self._step(path)
                with self._lost_is_a_problem(path):
                    self._put_in_place(path, name, ino)
            for ino in self._prepared_contents(sorted(self._plan.rewritten)):
                self._step(b"")
                with self._lost_is_a_problem(next((p for p, _ in self._known.places(ino)), b"")):
                    self._rewrite(ino)
            self._bring_back()
            finishing = Finishing(self._reach, self._known, self._after, self._plan, self.problems)
            finishing.set_attributes(self._staging, self._step)
            reached("apply.attributes-set")
            if not self._staging.remove():
                text = STAGING.decode()
                self.problems.add(STAGING, f"{text} holds things that found no place; look at them")
            reached("apply.staging-removed")
        finally:
            self._staging.close()
        return finishing.shut(self._base.fd)

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
            self.problems.once(path, f"not written: {error.strerror}")

    def _sorted(
        self, snapshot: Snapshot, names: dict[Name, int], *, deepest: bool
    ) -> list[tuple[bytes, Name, int]]:
        rows = []
        for name, ino in names.items():
            above = snapshot.directory_path(name[0])
            if above is None:
                above = _base_path(snapshot, name[0])
            if above is None:
                continue
            path = above + b"/" + name[1] if above else name[1]
            if not is_reserved(path):
                rows.append((path, name, ino))
            elif snapshot is self._after and path == STAGING:
                self.problems.add(path, "not written: an apply needs this name itself")
        rows.sort(key=lambda row: (row[0].count(b"/"), row[0]), reverse=deepest)
        return rows

    def _coming(self) -> list[tuple[bytes, Name, int]]:
        """The new names: directories first, since other names of a file may come with them."""
        rows = self._sorted(self._after, self._plan.new_names, deepest=False)
        return sorted(rows, key=lambda row: not self._known.becomes_directory(row[2]))

    # -- names that come ----------------------------------------------------------------------

    def _prepared(self, rows: list[tuple[bytes, Name, int]]) -> Iterator[tuple[bytes, Name, int]]:
        """The new names, whose files were made shortly before."""
        seen: set[int] = set()

        def wanted(row: tuple[bytes, Name, int]) -> int:
            path, _, ino = row
            if ino in seen or self._staging.has(ino) or self._reach.lstat(path) is not None:
                return 0
            seen.add(ino)
            return ino

        return self._portions(rows, wanted)

    def _prepared_contents(self, inodes: list[int]) -> Iterator[int]:
        """The rewritten files, of which the new ones were made shortly before; not in a resumed
        apply, in which most may be done."""
        return self._portions(inodes, lambda ino: 0 if self._plan.resumed else ino)

    def _portions(self, rows: list[T], wanted: Callable[[T], int]) -> Iterator[T]:
        """Give rows on in portions, each when the regular files for it are on stable storage.
        wanted: the inode number of one to make, else 0."""
        portion: list[T] = []
        files: list[tuple[int, records.InodeRecord]] = []
        size = 0
        for row in rows:
            portion.append(row)
            ino = wanted(row)
            record = self._after.inode(ino) if ino else None
            if record is not None and record.size and stat.S_ISREG(record.mode):
                files.append((ino, record))
                size += record.size
            if len(files) >= _PORTION_FILES or size >= _PORTION_BYTES:
                self._staging.prepare(files, self._after)
                yield from portion
                portion, files, size = [], [], 0
        self._staging.prepare(files, self._after)
        yield from portion

    def _put_in_place(self, path: bytes, name: Name, ino: int) -> None:
        record = self._after.inode(ino)
        assert record is not None
        st = self._reach.lstat(path)
        if st is not None:
            if self._is_right(path, name, st, ino, record):
                return
            if not self._replaceable(st, name):
                self._move_aside(path)
        else:
            self._make_parents(name[0])
        reached("apply.before-placing")
        with self._reach.changing(path) as (fd, last):
            if self._staging.has(ino):
                self._place_staged(fd, last, name, ino)
            elif stat.S_ISDIR(record.mode):
                os.mkdir(last, 0o700, dir_fd=fd)
                if ino not in self._plan.created:
                    self._refill(ino)
            elif self._make(path, ino, record):
                reached("apply.made")
                os.rename(new_name(ino), last, src_dir_fd=self._staging.fd, dst_dir_fd=fd)
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
        st = self._reach.lstat(path)
        if st is not None:
            if stat.S_ISDIR(st.st_mode):
                return
            self._move_aside(path)
        with self._reach.changing(path) as (fd, last):
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
        for path, name in self._known.places(ino):
            known = self._known.under(name)
            # Those with other content were replaced already.
            shadowed = known is not None and not known.ino and ino not in self._plan.rewritten
            if self._reach.lstat(path) is None or shadowed:
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
        record, old = self._known.under(name), self._plan.gone_names.get(name)
        return (
            record is not None
            and record.ino == old
            and record.content not in self._plan.unsaved
            and not stat.S_ISDIR(st.st_mode)
            and same_file(st, recorded_fingerprint(record))
        )

    def _place_staged(self, fd: int, last: bytes, name: Name, ino: int) -> None:
        """Move a staged thing to its new name; a file with further names keeps its link there."""
        staged = staged_name(ino)
        more = sum(1 for other in self._plan.new_names.values() if other == ino) > 1
        st = self._staging.stat(staged)
        self._known.note(ino, st)
        after = self._after.inode(ino)
        content = after.content if after and stat.S_ISREG(after.mode) else 0
        record = base_record(BaseEntry(name[1], st, b"", {}), ino, content)

        def move() -> os.stat_result:
            source = staged
            if more and not stat.S_ISDIR(st.st_mode):
                with contextlib.suppress(PermissionError):  # another user's: it has but this name
                    source = self._staging.link_again(staged)
            os.rename(source, last, src_dir_fd=self._staging.fd, dst_dir_fd=fd)
            return os.stat(last, dir_fd=fd, follow_symlinks=False)

        self._move(move, record, *name)

    def _is_right(
        self, path: bytes, name: Name, st: os.stat_result, ino: int, record: records.InodeRecord
    ) -> bool:
        """Whether what has to lie there does: it always did, or an interrupted run put it there."""
        if not self._staging.has(ino):
            return self._known.is_right(path, name, st, ino, record)
        # It has further names to get; this one may be of an interrupted run, which may even have
        # come to give all of them their new content.
        if os.path.samestat(st, self._staging.stat(staged_name(ino))):
            return True
        return (
            ino in self._plan.rewritten
            and stat.S_ISREG(record.mode)
            and stat.S_ISREG(st.st_mode)
            and self._known.has_bytes(path, st, record)
        )

    def _move_aside(self, path: bytes) -> None:
        """Something that the workspace does not know lies where a name has to come: keep it."""
        with self._reach.changing(path) as (fd, name):
            for number in range(1, 1000):
                aside = name[:200] + b".outside-%d" % number
                if not exists(fd, aside):
                    os.rename(name, aside, src_dir_fd=fd, dst_dir_fd=fd)
                    kept = aside.decode("utf-8", "surrogateescape")
                    self.problems.add(path, f"was made or changed outside; kept as {kept}")
                    return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    def _twin(self, path: bytes, ino: int, record: records.InodeRecord) -> bytes | None:
        """Another name of a file that is in place already."""
        if record.nlink < 2:
            return None
        ours = self._known.fingerprints(ino)
        for other, name in self._known.places(ino):
            st = self._reach.lstat(other) if other != path else None
            if st is not None and (
                fingerprint(st)[:4] in ours or self._is_right(other, name, st, ino, record)
            ):
                return other
        return None

    def _make(self, path: bytes, ino: int, record: records.InodeRecord) -> bool:
        """Make a file, link or special file in the staging directory; False when refused."""
        twin = self._twin(path, ino, record)
        if twin is not None:
            self._staging.forget_new(ino)
            try:
                with self._reach.parent(twin) as (fd, name):
                    self._staging.take(fd, name, new_name(ino))
                return True
            except PermissionError:
                text = "became a file of its own: the kernel lets only its owner and root link it"
                self.problems.add(path, text)
        try:
            self._known.note(ino, self._staging.make(ino, record, self._after))
        except PermissionError as error:
            if not stat.S_ISCHR(record.mode) and not stat.S_ISBLK(record.mode):
                raise
            self.problems.add(path, f"a device cannot be made: {error.strerror}")
            return False
        return True

    # -- contents -----------------------------------------------------------------------------

    def _rewrite(self, ino: int) -> None:
        """Replace a file's content atomically under all its names, which stay one file; a file
        that has names outside, too, becomes one of its own."""
        record = self._after.inode(ino)
        assert record is not None
        stats = [(path, name, self._reach.lstat(path)) for path, name in self._known.places(ino)]
        if self._is_done(ino, stats, record):
            return
        reached("apply.before-rewrite")
        ours = self._known.fingerprints(ino)
        new = self._staging.make(ino, record, self._after)
        self._known.note(ino, new)
        reached("apply.rewrite-made")
        for path, name, st in stats:
            self.current = path
            if st is not None and not self._is_replaced(path, name, st, record, ours):
                self._move_aside(path)
            if st is None:
                self._make_parents(name[0])
            with self._reach.changing(path) as (fd, last):
                copy = self._staging.link_again(new_name(ino))
                os.rename(copy, last, src_dir_fd=self._staging.fd, dst_dir_fd=fd)
            reached("apply.rewrite-placed")
            self._plan.directories.add(name[0])  # the rename changed its times
        os.unlink(new_name(ino), dir_fd=self._staging.fd)
        reached("apply.rewritten")

    def _is_done(
        self,
        ino: int,
        stats: list[tuple[bytes, Name, os.stat_result | None]],
        record: records.InodeRecord,
    ) -> bool:
        st = stats[0][2] if stats else None
        if (
            ino in self._plan.detached
            and st is not None
            and has_names_outside(self._known, self._staging, ino, st)
        ):
            return False
        if not stat.S_ISREG(record.mode):
            return all(
                s is not None and self._is_right(path, name, s, ino, record)
                for path, name, s in stats
            )
        return self._known.is_one_right_file(ino, stats, record)

    def _is_replaced(
        self,
        path: bytes,
        name: Name,
        st: os.stat_result,
        record: records.InodeRecord,
        ours: set[tuple[int, ...]],
    ) -> bool:
        """Whether what lies there is the old file, or the new one by an interrupted run."""
        known = self._known.under(name)
        if stat.S_IFMT(st.st_mode) != stat.S_IFMT(record.mode) or (
            known is not None and known.content in self._plan.unsaved
        ):
            return False
        if fingerprint(st)[:4] in ours:
            return True
        return stat.S_ISREG(st.st_mode) and self._known.has_bytes(path, st, record)


def _base_path(snapshot: Snapshot, ino: int) -> bytes | None:
    """Where the base has a directory that neither state has, None when it has not."""
    parts: list[bytes] = []
    while ino != ROOT_INO:
        if len(parts) > _DEEPEST:
            return None
        value = snapshot.reader.get("origin", keys.pack_id(ino))
        if value is None:
            return None
        origin = records.unpack_origin(value)
        parts.append(origin.name)
        ino = origin.parent
    return b"/".join(reversed(parts))
