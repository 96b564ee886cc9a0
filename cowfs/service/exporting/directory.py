"""Writing a state into a directory of an ordinary file system.

Everything is made in a staging directory that only we may enter, exclusively and relative to
descriptors, so that no symbolic link, in the state or put there by somebody else, is ever
followed. At the end it is renamed to its destination: a crash leaves nothing under that name.

Threading: none of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import NamedTuple

from cowfs.errors import (
    ContentLostError,
    CowfsError,
    DamagedRecordError,
    DestinationExistsError,
    ExportFailedError,
    NotADirectoryPathError,
    PermissionDeniedError,
)
from cowfs.service.content import Node, Tree
from cowfs.service.exporting.report import Exported, Meter, Progress
from cowfs.volume.base import place

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SET_ID = stat.S_ISUID | stat.S_ISGID
_UNREADABLE = (ContentLostError, DamagedRecordError, PermissionDeniedError)

_KERNEL_XATTRS = frozenset((b"security.selinux", b"security.ima", b"security.evm"))
"""The kernel gives every file its own by rules of the place; only a privileged user may set them,
and nobody misses them."""

_libc = ctypes.CDLL(None, use_errno=True)


def write_directory(tree: Tree, dest: Path, progress: Progress, *, durable: bool) -> Exported:
    """Write a state to `dest`. Errors as of `export_tree`."""
    place = Path(os.path.realpath(dest))
    existing = _check_free(dest, place)
    # What cannot be renamed over is filled from within.
    within = existing and _stays(place)
    parent = place if within else place.parent
    name = b".%s.%s.partial" % (os.fsencode(place.name)[:200], secrets.token_hex(4).encode())
    above = open_parent(parent)
    try:
        try:
            try:
                os.mkdir(name, 0o700, dir_fd=above)
            except PermissionError:
                raise PermissionDeniedError(detail=f"{parent} cannot be written") from None
            return _write(tree, above, name, place, within, progress, durable)
        except BaseException:
            # An interruption can come as soon as the directory is there.
            shutil.rmtree(name, ignore_errors=True, dir_fd=above)
            raise
    except OSError as error:
        where = f"{_text(error.filename)}: " if error.filename else ""
        raise ExportFailedError(path=str(dest), detail=f"{where}{error.strerror}") from None
    finally:
        os.close(above)


def open_parent(parent: Path, flags: int = 0) -> int:
    """A descriptor of the directory in which an export is made. Its path has no symbolic links any
    more: what has become one is not followed. flags: O_PATH if it need not be read.

    Raises PermissionDeniedError, NotADirectoryPathError.
    """
    fd = os.open("/", os.O_PATH | _DIRECTORY)
    parts = parent.parts[1:]
    try:
        for part in parts:
            below = os.open(part, os.O_PATH | _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        return os.open(".", _DIRECTORY | flags, dir_fd=fd)
    except PermissionError:
        raise PermissionDeniedError(detail=f"{parent} cannot be read") from None
    except OSError:
        raise NotADirectoryPathError(path=str(parent)) from None
    finally:
        os.close(fd)


def _text(name: object) -> str:
    return os.fsdecode(name) if isinstance(name, (str, bytes)) else str(name)


def _check_free(dest: Path, place: Path) -> bool:
    """Whether `place` exists as an empty directory. Raises DestinationExistsError."""
    try:
        with os.scandir(place) as entries:
            if next(entries, None) is not None:
                raise DestinationExistsError(path=str(dest))
        return True
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        raise DestinationExistsError(path=str(dest)) from None
    except OSError as error:
        raise PermissionDeniedError(detail=f"{dest}: {error.strerror}") from None


def _stays(place: Path) -> bool:
    """Whether an existing directory cannot be, or should not be, replaced by another one."""
    return (
        os.path.ismount(place)
        or not os.access(place.parent, os.W_OK | os.X_OK)
        or os.path.samestat(os.stat(place), os.stat("."))
    )


def _write(
    tree: Tree,
    above: int,
    name: bytes,
    place: Path,
    within: bool,
    progress: Progress,
    durable: bool,
) -> Exported:
    fd = os.open(name, _DIRECTORY, dir_fd=above)
    try:
        st = os.fstat(fd)
        if st.st_uid != os.geteuid() or st.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise OSError(errno.ESTALE, "somebody replaced it", name)
        writer = Writer(tree, fd, progress)
        writer.run()
        top = tree.root()
        if within:
            for entry in os.listdir(fd):
                os.rename(entry, entry, src_dir_fd=fd, dst_dir_fd=above)
            os.rmdir(name, dir_fd=above)
            writer.lock(above)
            writer.set_attributes(above, top)
            if durable:
                _sync(above)
            return writer.finish()
        writer.lock(fd)
        writer.set_attributes(fd, top)
        if durable:
            _sync(fd)
        try:
            os.rename(name, os.fsencode(place.name), src_dir_fd=above, dst_dir_fd=above)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise DestinationExistsError(path=str(place)) from None
            raise
        if durable:
            os.fsync(above)
        return writer.finish()
    finally:
        os.close(fd)


def _sync(fd: int) -> None:
    """Bring the file system of `fd` to stable storage, before the result gets its name."""
    if _libc.syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class _Level(NamedTuple):
    """A directory that is being filled. identity: (dev, ino) of the one that we made."""

    node: Node
    entries: Iterator[Node]
    identity: tuple[int, int]


class Writer:
    """Fills one directory with a state. report: what was written so far."""

    def __init__(self, tree: Tree, top: int, progress: Progress) -> None:
        self._tree = tree
        self._top = top
        self._uid = os.geteuid()
        self.report = Exported()
        self._meter = Meter(self.report, progress)
        self._links: dict[Hashable, bytes] = {}
        self._late: list[Node] = []
        st = os.fstat(top)
        self._self = (st.st_dev, st.st_ino)

    def finish(self) -> Exported:
        self._meter.finish()
        return self.report

    def run(self) -> None:
        """Write everything but the attributes of the top itself and what `lock` does."""
        root = self._tree.root()
        self.report.directories += 1
        fd = os.dup(self._top)
        levels = [_Level(root, self._entries(root), self._self)]
        try:
            while True:
                node = next(levels[-1].entries, None)
                if node is not None:
                    if node.is_dir:
                        below = self._enter(fd, node)
                        os.close(fd)
                        fd = below
                        st = os.fstat(fd)
                        identity = (st.st_dev, st.st_ino)
                        levels.append(_Level(node, self._entries(node), identity))
                    else:
                        self.write(fd, node)
                        self._meter.tick()
                    continue
                done = levels.pop()
                if not levels:
                    break
                # One descriptor at a time: a tree may be deeper than files can be open.
                up = os.open(b"..", _DIRECTORY, dir_fd=fd)
                st = os.fstat(up)
                try:
                    if (st.st_dev, st.st_ino) != levels[-1].identity:
                        raise OSError(errno.ESTALE, "somebody moved it", done.node.path)
                    self._leave(fd, done.node)
                except BaseException:
                    os.close(up)
                    raise
                os.close(fd)
                fd = up
        finally:
            os.close(fd)

    def lock(self, top: int) -> None:
        """Set the modes that would have kept us out."""
        self._top = top
        for node in self._late:
            fd = self._open(node.path)
            try:
                os.fchmod(fd, self._mode(node, os.fstat(fd)))
            finally:
                os.close(fd)

    def _entries(self, directory: Node) -> Iterator[Node]:
        for node in directory.entries(self._failed):
            if node.base_identity != self._self:
                yield node

    def _failed(self, path: bytes, error: CowfsError) -> None:
        self.report.problem(path, "content", error)

    # -- directories ----------------------------------------------------------------------------

    def _enter(self, fd: int, node: Node) -> int:
        name = node.name
        os.mkdir(name, 0o700, dir_fd=fd)
        self.report.directories += 1
        return os.open(name, _DIRECTORY, dir_fd=fd)

    def _leave(self, fd: int, node: Node) -> None:
        """The directory is complete: now its times stay. The mode waits if it would keep us out."""
        locked = self._uid != 0 and node.mode & 0o700 != 0o700
        if locked:
            self._late.append(node)
        self.set_attributes(fd, node, mode=not locked)

    def _open(self, path: bytes) -> int:
        """A descriptor of a directory that we made."""
        fd = os.dup(self._top)
        for part in path.split(b"/") if path else ():
            try:
                below = os.open(part, _DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    # -- everything else ------------------------------------------------------------------------

    def write(self, fd: int, node: Node) -> None:
        """Make anything but a directory under its name in the directory `fd`, which has none."""
        shared = node.nlink > 1
        if shared and self._link(fd, node):
            return
        if node.is_file:
            made = self._file(fd, node)
        elif node.is_symlink:
            os.symlink(node.target, node.name, dir_fd=fd)
            self.report.symlinks += 1
            self._attributes_by_name(fd, node)
            made = True
        else:
            made = self._special(fd, node)
        if shared and made:
            self._links[node.identity] = node.path

    def _link(self, fd: int, node: Node) -> bool:
        """Make a further name of a file that was written; False when it was not yet."""
        first = self._links.get(node.identity)
        if first is None:
            return False
        directory, _, name = first.rpartition(b"/")
        source = self._open(directory)
        try:
            os.link(name, node.name, src_dir_fd=source, dst_dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EMLINK, errno.ENOTSUP):
                raise
            self.report.problem(node.path, "link", f"it became a file of its own: {error}")
            return False
        finally:
            os.close(source)
        self.report.links += 1
        return True

    def _file(self, fd: int, node: Node) -> bool:
        file = os.open(node.name, _NEW_FILE, 0o600, dir_fd=fd)
        try:
            try:
                for offset, data in node.pieces():
                    _write_all(file, data, offset)
                    self._meter.tick()
            except _UNREADABLE as error:
                self.report.problem(node.path, "content", error)
                os.unlink(node.name, dir_fd=fd)
                return False
            os.ftruncate(file, node.size)
            self.set_attributes(file, node)
        finally:
            os.close(file)
        self.report.files += 1
        self.report.bytes_written += node.size
        return True

    def _special(self, fd: int, node: Node) -> bool:
        try:
            os.mknod(node.name, stat.S_IFMT(node.mode) | 0o600, node.rdev, dir_fd=fd)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS):
                raise
            self.report.problem(
                node.path, "special", f"a {node.kind} cannot be made: {error.strerror}"
            )
            return False
        self.report.specials += 1
        self._attributes_by_name(fd, node)
        return True

    # -- attributes -----------------------------------------------------------------------------

    def set_attributes(self, fd: int, node: Node, *, mode: bool = True) -> None:
        """Owner, extended attributes, mode and times of an open file or directory, in the order in
        which none undoes another: chown clears capabilities and set-id bits."""
        self._owner(node, os.fstat(fd), lambda uid, gid: os.chown(fd, uid, gid))
        for name, value in node.xattrs.items():
            self._xattr(node, name, lambda n=name, v=value: os.setxattr(fd, n, v))  # type: ignore[misc]
        if mode:
            self._try(node, "mode", lambda: os.fchmod(fd, self._mode(node, os.fstat(fd))))
        self._try(node, "times", lambda: os.utime(fd, ns=(node.atime, node.mtime)))

    def _attributes_by_name(self, fd: int, node: Node) -> None:
        """The same for what cannot be opened: by a descriptor of the thing itself (O_PATH), since
        a name can be given to something else."""
        made = os.open(node.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            st, where = os.fstat(made), place(made)
            if stat.S_IFMT(st.st_mode) != stat.S_IFMT(node.mode) or st.st_nlink != 1:
                raise OSError(errno.ESTALE, "somebody replaced it", node.path)
            self._owner(node, st, lambda uid, gid: os.chown(where, uid, gid))
            for key, value in node.xattrs.items():
                self._xattr(node, key, lambda n=key, v=value: os.setxattr(where, n, v))  # type: ignore[misc]
            if not node.is_symlink:
                mode = self._mode(node, os.fstat(made))
                self._try(node, "mode", lambda: os.chmod(where, mode))
            self._try(node, "times", lambda: os.utime(where, ns=(node.atime, node.mtime)))
        finally:
            os.close(made)

    def _owner(self, node: Node, st: os.stat_result, chown: Callable[[int, int], None]) -> None:
        uid = node.uid if node.uid != st.st_uid else -1
        gid = node.gid if node.gid != st.st_gid else -1
        if uid == -1 and gid == -1:
            return
        try:
            chown(uid, gid)
        except OSError as error:
            if uid != -1 and gid != -1:
                try:
                    chown(-1, gid)
                except OSError:
                    pass
            self.report.problem(
                node.path, "owner", f"{node.uid}:{node.gid} cannot be set: {error.strerror}"
            )

    def _mode(self, node: Node, st: os.stat_result) -> int:
        """The permissions; without the set-id bits where the owner is not who they are for."""
        if (st.st_uid, st.st_gid) == (node.uid, node.gid):
            return node.permissions
        if node.permissions & _SET_ID and not node.is_dir:
            self.report.problem(node.path, "mode", "set-id bits were left out with the owner")
            return node.permissions & ~_SET_ID
        return node.permissions

    def _xattr(self, node: Node, name: bytes, call: Callable[[], None]) -> None:
        if name in _KERNEL_XATTRS:
            with contextlib.suppress(OSError):
                call()
            return
        self._try(node, "xattr", call, os.fsdecode(name) + ": ")

    def _try(self, node: Node, what: str, call: Callable[[], None], prefix: str = "") -> None:
        """An attribute that the target cannot hold is reported, not fatal."""
        try:
            call()
        except (OSError, OverflowError, ValueError) as error:
            detail = error.strerror if isinstance(error, OSError) else str(error)
            self.report.problem(node.path, what, f"{prefix}{detail}")


def _write_all(fd: int, data: bytes, offset: int) -> None:
    done = os.pwrite(fd, data, offset)
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
