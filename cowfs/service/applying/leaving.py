"""The names that go: what lies there is removed, or waits for its new place.

Threading: for the thread of the apply.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from cowfs.format import records
from cowfs.service.applying.known import Known
from cowfs.service.applying.plan import Name, Plan
from cowfs.service.applying.problems import Problems
from cowfs.service.applying.reach import Reach, let_in
from cowfs.service.applying.staging import Staging, exists, staged_name, staging_place
from cowfs.store.steps import reached
from cowfs.volume.base import same_file
from cowfs.volume.importing import recorded_fingerprint

_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Mover = Callable[[Callable[[], os.stat_result], records.BaseRecord, int, bytes], None]
"""Runs a rename that returns the lstat afterwards, and records the new place (parent, name)."""


class Leaving:
    """Empties the names of the old state. Every step does only what is not done yet."""

    def __init__(
        self,
        reach: Reach,
        known: Known,
        staging: Staging,
        plan: Plan,
        problems: Problems,
        move: Mover,
    ) -> None:
        self._reach = reach
        self._known = known
        self._staging = staging
        self._plan = plan
        self._problems = problems
        self._move = move

    def take_away(self, path: bytes, name: Name, ino: int) -> None:
        """A name goes or will mean something else. A file that is replaced by a file keeps its
        name until the new one is renamed over it."""
        st, record = self._reach.lstat(path), self._known.under(name)
        if st is None or record is None or (st.st_dev, st.st_ino) != (record.dev, record.st_ino):
            return  # done by an interrupted run, or made by somebody else
        is_dir = stat.S_ISDIR(st.st_mode)
        if record.ino != ino or not (is_dir or same_file(st, recorded_fingerprint(record))):
            if name not in self._plan.new_names:
                self._problems.add(path, "not removed: it was changed outside")
            return
        if record.content in self._plan.unsaved and ino not in self._plan.moved:
            if name not in self._plan.new_names:
                self._problems.add(path, "not removed: its content cannot be read and saved")
            return
        after = self._plan.new_names.get(name)
        replaced = after is not None and not is_dir and not self._known.becomes_directory(after)
        reached("apply.before-take-away")
        with self._reach.changing(path) as (fd, last):
            if ino in self._plan.moved and not self._staging.has(ino):
                self._stage(fd, name, ino, record, is_dir)
                reached("apply.staged")
            elif is_dir:
                self._remove_directory(fd, last, path)
            if not is_dir and not replaced:
                with contextlib.suppress(FileNotFoundError):  # it could only be moved
                    os.unlink(last, dir_fd=fd)
        reached("apply.removed")

    def _stage(
        self, fd: int, name: Name, ino: int, record: records.BaseRecord, is_dir: bool
    ) -> None:
        """Directories are renamed into the staging directory, files get a link there."""
        staged = staged_name(ino)

        def move() -> os.stat_result:
            if is_dir:
                # Its own `..` changes, too.
                below = os.open(name[1], _PATH, dir_fd=fd)
                try:
                    let_in(below)
                finally:
                    os.close(below)
                os.rename(name[1], staged, src_dir_fd=fd, dst_dir_fd=self._staging.fd)
            else:
                self._staging.take_or_move(fd, name[1], staged)
            return self._staging.stat(staged)

        try:
            self._move(move, record, *staging_place(ino))
        except PermissionError:
            if not is_dir or not self._rename_beside(fd, name, ino, record):
                raise

    def _rename_beside(self, fd: int, name: Name, ino: int, record: records.BaseRecord) -> bool:
        """Give a directory its new name where it is, if that is all that changes: `..` of one of
        another user cannot become another. Returns whether it could be done."""
        beside = next(
            (n for n, i in self._plan.new_names.items() if (n[0], i) == (name[0], ino)), None
        )
        if beside is None or exists(fd, beside[1]):
            return False

        def move() -> os.stat_result:
            os.rename(name[1], beside[1], src_dir_fd=fd, dst_dir_fd=fd)
            return os.stat(beside[1], dir_fd=fd, follow_symlinks=False)

        self._move(move, record, *beside)
        return True

    def _remove_directory(self, fd: int, name: bytes, path: bytes) -> None:
        try:
            os.rmdir(name, dir_fd=fd)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._problems.add(path, "not removed: it holds things that were made outside")
