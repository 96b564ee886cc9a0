"""Names: lookup, create, mknod, mkdir, symlink, link, unlink, rmdir, rename, listing.

Semantics and errnos are those of POSIX and the Linux man pages of the system calls.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import errno
import stat

from cowfs.format import records
from cowfs.types import NAME_MAX
from cowfs.volume import unnamed
from cowfs.volume.inode import Inode
from cowfs.volume.posix import PosixError, now
from cowfs.volume.view import View

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
LINK_MAX = 0x7FFF_FFFF
SYMLINK_MAX = 4095
"""Bytes in a symbolic link (PATH_MAX less the NUL)."""


def find(view: View, parent: int, name: bytes) -> Inode | None:
    """The inode of a name, None when there is none; it may be `damaged`. Raises PosixError."""
    if len(name) > NAME_MAX:
        raise PosixError(errno.ENAMETOOLONG)
    entries = view.directory(parent).entries
    assert entries is not None
    packed = entries.get(name)
    return view.named(packed) if packed is not None else None


def lookup(view: View, parent: int, name: bytes) -> Inode | None:
    """The inode of a name, None when there is none. Raises PosixError; EIO when it is damaged."""
    inode = find(view, parent, name)
    if inode is not None and inode.damaged:
        raise PosixError(errno.EIO)
    return inode


def entries(view: View, ino: int) -> list[tuple[bytes, int]]:
    """(name, ino << 4 | kind) of a directory as it is now, in the order names were added."""
    found = view.directory(ino).entries
    assert found is not None
    return list(found.items())


def _room_for(view: View, parent: int, name: bytes) -> Inode:
    """The directory, when `name` can be made in it."""
    if len(name) > NAME_MAX:
        raise PosixError(errno.ENAMETOOLONG)
    directory = view.directory(parent)
    assert directory.entries is not None
    if directory.orphan_epoch:
        raise PosixError(errno.ENOENT)
    if name in directory.entries:
        raise PosixError(errno.EEXIST)
    view.volume.require_room()
    return directory


def create(
    view: View,
    parent: int,
    name: bytes,
    mode: int,
    uid: int,
    gid: int,
    *,
    rdev: int = 0,
    target: bytes = b"",
) -> Inode:
    """Make a file, directory, symbolic link or special file; `mode` has its type.

    A setgid directory passes its group on, and to directories its setgid bit (inode(7)).
    Raises PosixError (EEXIST, ENOENT, ENAMETOOLONG, ENOSPC).
    """
    directory = _room_for(view, parent, name)
    is_dir = stat.S_ISDIR(mode)
    if len(target) > SYMLINK_MAX:
        raise PosixError(errno.ENAMETOOLONG)
    view.begin()
    if directory.mode & stat.S_ISGID:
        gid = directory.gid
        if is_dir:
            mode |= stat.S_ISGID
    moment = now()
    inode = view.add_inode(
        records.InodeRecord(
            0,
            mode,
            2 if is_dir else 1,
            uid,
            gid,
            rdev,
            len(target),
            moment,
            moment,
            moment,
            0,
            0,
            target,
        )
    )
    view.add_name(directory, name, inode)
    if is_dir:
        directory.nlink += 1
    directory.mtime = directory.ctime = moment
    view.mark(directory)
    return inode


def link(view: View, ino: int, parent: int, name: bytes) -> Inode:
    """Another name for a file, or the first one of a file that was made without. Raises PosixError
    (EPERM, EEXIST, ENOENT, EMLINK)."""
    inode = view.inode(ino)
    if inode.is_dir:
        raise PosixError(errno.EPERM)
    if inode.orphan_epoch and ino not in view.unnamed:
        raise PosixError(errno.ENOENT)
    if inode.nlink >= LINK_MAX:
        raise PosixError(errno.EMLINK)
    directory = _room_for(view, parent, name)
    view.begin()
    moment = now()
    if inode.orphan_epoch:
        unnamed.enter(view, inode)
    view.add_name(directory, name, inode)
    inode.nlink += 1
    inode.ctime = moment
    directory.mtime = directory.ctime = moment
    view.mark(inode)
    view.mark(directory)
    return inode


def _child(view: View, parent: int, name: bytes) -> tuple[Inode, Inode]:
    """(directory, inode) of an existing name; the inode may be `damaged`."""
    if len(name) > NAME_MAX:
        raise PosixError(errno.ENAMETOOLONG)
    directory = view.directory(parent)
    assert directory.entries is not None
    packed = directory.entries.get(name)
    if packed is None:
        raise PosixError(errno.ENOENT)
    return directory, view.named(packed)


def unlink(view: View, parent: int, name: bytes) -> Inode:
    """Remove a name of something that is not a directory. Raises PosixError (EISDIR, ENOENT)."""
    directory, inode = _child(view, parent, name)
    if inode.is_dir:
        raise PosixError(errno.EISDIR)
    view.begin()
    _remove_name(view, directory, name, inode, now())
    return inode


def rmdir(view: View, parent: int, name: bytes) -> Inode:
    """Remove an empty directory. Raises PosixError (ENOTDIR, ENOTEMPTY, ENOENT)."""
    directory, inode = _child(view, parent, name)
    if not inode.is_dir:
        raise PosixError(errno.ENOTDIR)
    if _has_entries(view, inode):
        raise PosixError(errno.ENOTEMPTY)
    view.begin()
    inode.removed = True
    _remove_name(view, directory, name, inode, now())
    return inode


def _has_entries(view: View, directory: Inode) -> bool:
    if directory.damaged:
        return bool(view.stored_entries(directory.ino))
    return bool(view.directory(directory.ino).entries)


def _remove_name(view: View, directory: Inode, name: bytes, inode: Inode, moment: int) -> None:
    view.drop_name(directory, name, inode)
    directory.mtime = directory.ctime = moment
    if inode.is_dir:
        directory.nlink -= 1
    view.mark(directory)
    inode.ctime = moment
    if inode.is_dir or inode.nlink <= 1:
        view.remove_inode(inode)
    else:
        inode.nlink -= 1
        if not inode.damaged:
            view.mark(inode)


def rename(
    view: View, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0
) -> Inode | None:
    """rename(2); returns the inode that was replaced, None when there was none.

    `flags`: RENAME_NOREPLACE or RENAME_EXCHANGE. Raises PosixError (ENOENT, EEXIST, EISDIR,
    ENOTDIR, ENOTEMPTY, EINVAL, ENAMETOOLONG).
    """
    if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE) or flags == 3:
        raise PosixError(errno.EINVAL)
    source, inode = _child(view, parent, name)
    if inode.damaged:
        raise PosixError(errno.EIO)
    if len(new_name) > NAME_MAX:
        raise PosixError(errno.ENAMETOOLONG)
    target = view.directory(new_parent)
    if target.orphan_epoch:
        raise PosixError(errno.ENOENT)
    assert target.entries is not None
    packed = target.entries.get(new_name)
    old = view.named(packed) if packed is not None else None
    if old is not None and flags & RENAME_NOREPLACE:
        raise PosixError(errno.EEXIST)
    if old is not None and old.damaged and flags & RENAME_EXCHANGE:
        raise PosixError(errno.EIO)
    if old is None and flags & RENAME_EXCHANGE:
        raise PosixError(errno.ENOENT)
    if inode.is_dir and _is_below(view, target, inode):
        raise PosixError(errno.EINVAL)
    if old is not None and old is not inode and not flags & RENAME_EXCHANGE:
        _check_replaceable(view, inode, old)  # may read a directory of the base
    view.begin()
    moment = now()
    if old is not None and flags & RENAME_EXCHANGE:
        if old.is_dir and _is_below(view, source, old):
            raise PosixError(errno.EINVAL)
        _exchange(view, (source, name, inode), (target, new_name, old), moment)
        return None
    if old is inode:
        return None  # two names of one file: nothing happens (rename(2))
    if old is not None:
        old.removed = old.is_dir
        _remove_name(view, target, new_name, old, moment)
        if inode.is_file and old.is_file:
            inode.reference = inode.reference or old.content
            view.count_replacement(inode, old)
    view.drop_name(source, name, inode)
    view.add_name(target, new_name, inode)
    if inode.is_dir and source is not target:
        source.nlink -= 1
        target.nlink += 1
    _touch(view, moment, source, target)
    inode.ctime = moment
    view.mark(inode)
    return old


def _touch(view: View, moment: int, *directories: Inode) -> None:
    for directory in directories:
        directory.mtime = directory.ctime = moment
        view.mark(directory)


def _check_replaceable(view: View, inode: Inode, old: Inode) -> None:
    if inode.is_dir and not old.is_dir:
        raise PosixError(errno.ENOTDIR)
    if old.is_dir and not inode.is_dir:
        raise PosixError(errno.EISDIR)
    if old.is_dir and _has_entries(view, old):
        raise PosixError(errno.ENOTEMPTY)


def _is_below(view: View, directory: Inode, top: Inode) -> bool:
    """Whether `directory` is `top` or lies below it."""
    while directory is not top:
        if directory.ino == 1:
            return False
        directory = view.inode(view.parent_of(directory))
    return True


_Place = tuple[Inode, bytes, Inode]


def _exchange(view: View, one: _Place, two: _Place, moment: int) -> None:
    (source, name, inode), (target, new_name, old) = one, two
    if inode is old:
        return
    view.drop_name(source, name, inode)
    view.drop_name(target, new_name, old)
    view.add_name(source, name, old)
    view.add_name(target, new_name, inode)
    if source is not target and inode.is_dir != old.is_dir:
        source.nlink += 1 if old.is_dir else -1
        target.nlink += 1 if inode.is_dir else -1
    _touch(view, moment, source, target)
    inode.ctime = old.ctime = moment
    view.mark(inode)
    view.mark(old)
