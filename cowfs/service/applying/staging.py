"""The directory `.cowfs-apply` in the base, in which an apply makes things and lets them wait.

Threading: for the thread of the apply.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from cowfs.format import records
from cowfs.service.applying.contents import LostContentError, pieces
from cowfs.service.applying.plan import Name
from cowfs.service.applying.reach import let_in, sync_file_system
from cowfs.store.snapshot import Snapshot
from cowfs.types import ROOT_INO
from cowfs.volume.base import STAGING, Base

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def is_reserved(path: bytes) -> bool:
    """Whether a path of the workspace is where the staging directory lies in the base."""
    return path == STAGING or path.startswith(STAGING + b"/")


def staging_place(ino: int) -> Name:
    """Where a staged thing lies, as (parent, name) of the base table."""
    return ROOT_INO, STAGING + b"/" + staged_name(ino)


def staged_name(ino: int) -> bytes:
    """Of a thing that waits for its new place."""
    return b"%d" % ino


def new_name(ino: int) -> bytes:
    """Of a file that is being made."""
    return b"%d.new" % ino


def exists(fd: int, name: bytes) -> bool:
    """Whether a directory has a name."""
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class Staging:
    """An open staging directory, into which only we come. fd: to reach what is in it."""

    def __init__(self, base: Base, *, resumed: bool, move_aside: Callable[[bytes], None]) -> None:
        """resumed: it may have things of an interrupted run. move_aside: gets rid of something else
        under its name. Raises OSError."""
        self._base = base
        self._ready: dict[int, os.stat_result] = {}
        let_in(base.fd)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            fd = base.open_directory(STAGING)
            try:
                usable = self._is_ours(fd) and (resumed or not os.listdir(fd))
            finally:
                os.close(fd)
            if not usable:
                move_aside(STAGING)
        if exists(base.fd, STAGING) and not stat.S_ISDIR(
            os.stat(STAGING, dir_fd=base.fd, follow_symlinks=False).st_mode
        ):
            move_aside(STAGING)
        with contextlib.suppress(FileExistsError):
            os.mkdir(STAGING, 0o700, dir_fd=base.fd)
        self.fd = base.open_directory(STAGING)
        if not self._is_ours(self.fd):
            os.close(self.fd)
            raise FileExistsError(f"{os.fsdecode(STAGING)} is somebody else's")

    def _is_ours(self, fd: int) -> bool:
        """Whether nobody else can have put things there: it is of the daemon's user (of the base's
        owner, if that is root), and closed to others."""
        st, owner = os.fstat(fd), os.geteuid()
        owners = {owner} if owner else {owner, os.fstat(self._base.fd).st_uid}
        return st.st_uid in owners and not st.st_mode & _OTHERS

    def has(self, ino: int) -> bool:
        """Whether a thing waits here."""
        return exists(self.fd, staged_name(ino))

    def stat(self, name: bytes) -> os.stat_result:
        """lstat of something here."""
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def make(self, ino: int, record: records.InodeRecord, after: Snapshot) -> os.stat_result:
        """Make a file, link or special file here, as `new_name`. Raises PermissionError for a
        device that only root can make, LostContentError, OSError."""
        if ino in self._ready:
            return self._ready.pop(ino)
        self.forget_new(ino)
        mode, name = record.mode, new_name(ino)
        if stat.S_ISREG(mode):
            return self._write(name, record, after, durable=True)
        if stat.S_ISLNK(mode):
            os.symlink(record.target, name, dir_fd=self.fd)
        else:
            os.mknod(name, mode, record.rdev, dir_fd=self.fd)
        return self.stat(name)

    def prepare(self, files: list[tuple[int, records.InodeRecord]], after: Snapshot) -> None:
        """Make regular files ahead, and put them all on stable storage at once: none of them may
        get its name before, or a power cut would leave a name with half a file. One whose content
        is lost is left out. Raises OSError."""
        made = {}
        for ino, record in files:
            self.forget_new(ino)
            with contextlib.suppress(LostContentError):
                made[ino] = self._write(new_name(ino), record, after, durable=False)
        if made:
            sync_file_system(self.fd)
        self._ready |= made

    def _write(
        self, name: bytes, record: records.InodeRecord, after: Snapshot, *, durable: bool
    ) -> os.stat_result:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self.fd)
        try:
            for offset, piece in pieces(after, record):
                os.pwrite(fd, piece, offset)
            os.ftruncate(fd, record.size)
            if durable and record.size:
                os.fdatasync(fd)
            return os.fstat(fd)
        finally:
            os.close(fd)

    def forget_new(self, ino: int) -> None:
        """Remove what an interrupted run was making: it may be incomplete."""
        self._ready.pop(ino, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new_name(ino), dir_fd=self.fd)

    def take(self, fd: int, name: bytes, to: bytes) -> None:
        """Make a further link here of a file that lies in a directory of the base."""
        os.link(name, to, src_dir_fd=fd, dst_dir_fd=self.fd, follow_symlinks=False)

    def take_or_move(self, fd: int, name: bytes, to: bytes) -> None:
        """As `take`; where the kernel refuses a link to a file of another user
        (protected_hardlinks, proc_sys_fs(5)), the name itself comes here."""
        try:
            self.take(fd, name, to)
        except PermissionError:
            os.rename(name, to, src_dir_fd=fd, dst_dir_fd=self.fd)

    def link_again(self, staged: bytes) -> bytes:
        """Another link of something here, to be renamed into place; returns its name."""
        copy = staged + b".link"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy, dir_fd=self.fd)  # of an interrupted run
        self.take(self.fd, staged, copy)
        return copy

    def links_to(self, st: os.stat_result) -> int:
        """How many names a file has here."""
        return _links_in(self.fd, st)

    def remove(self) -> bool:
        """Remove it with what is left over of files; False when more than that is left."""
        for name in os.listdir(self.fd):
            number = name.removesuffix(".link").removesuffix(".new")
            st = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            if number.isdigit() and not stat.S_ISDIR(st.st_mode):
                os.unlink(name, dir_fd=self.fd)  # a link, or an interrupted run's copy
        let_in(self._base.fd)
        try:
            os.rmdir(STAGING, dir_fd=self._base.fd)
        except OSError:
            return False
        return True

    def close(self) -> None:
        os.close(self.fd)


def staged_links(base: Base, st: os.stat_result) -> int:
    """How many names a file has in the staging directory that an interrupted apply left."""
    try:
        fd = base.open_directory(STAGING)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        if error.errno != errno.ELOOP:  # something else has its name
            raise
        return 0
    try:
        return _links_in(fd, st)
    finally:
        os.close(fd)


def _links_in(fd: int, st: os.stat_result) -> int:
    stats = (os.stat(name, dir_fd=fd, follow_symlinks=False) for name in os.listdir(fd))
    return sum(os.path.samestat(other, st) for other in stats)
