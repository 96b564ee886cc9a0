"""Who watches the mount, and how a restore lets them know.

A FUSE server cannot raise inotify events, but it can cause them: the daemon makes system calls
through the mount as a *ghost* (mount/kernel.py), to which the handlers answer success without doing
anything. A name that went is unlinked: the kernel still has it. A name that came is made: the
handlers tell ghosts that it is absent, and answer the creation with the inode that is there. A file
that changed is opened for writing and set to the size that it has.

Only what somebody watches is announced: /proc shows the inodes that inotify and fanotify watch.
(Watchers of other users are seen only as root; without root they cannot see the mount either.)

Threading: for the daemon's worker threads. The `announce_` functions are called by a ghost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager

from cowfs.tree.announcing import Announcement, Appeared, Modified

log = logging.getLogger(__name__)

Find = Callable[[bytes], AbstractContextManager[tuple[int, bytes]]]
"""Opens the directory of a path and gives the name in it (`Ghosts.parent`)."""
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def watched_inodes(device: int) -> set[int]:
    """Inode numbers on a device (st_dev) that processes watch, as proc(5) "fdinfo" shows them."""
    # The kernel prints its own form of a device number: major << 20 | minor.
    wanted = f"sdev:{os.major(device) << 20 | os.minor(device):x}"
    found: set[int] = set()
    for process in os.listdir("/proc"):
        if not process.isdigit():
            continue
        try:
            descriptors = os.listdir(f"/proc/{process}/fd")
        except OSError:
            continue
        for fd in descriptors:
            try:
                kind = os.readlink(f"/proc/{process}/fd/{fd}")
                if "notify" not in kind or not kind.startswith("anon_inode:"):
                    continue
                with open(f"/proc/{process}/fdinfo/{fd}", encoding="ascii") as file:
                    for line in file:
                        if wanted in line:
                            fields = dict(f.split(":", 1) for f in line.split() if ":" in f)
                            if fields.get("sdev") == wanted[5:]:
                                found.add(int(fields["ino"], 16))
            except (OSError, ValueError, KeyError):
                continue
    return found


def working_directories(mountpoint: str) -> set[str]:
    """Working directories of processes below the mount, relative to it."""
    found = set()
    for process in os.listdir("/proc"):
        if process.isdigit():
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/{process}/cwd")
                if path.startswith(mountpoint + "/"):
                    found.add(path[len(mountpoint) + 1 :])
    return found


def announce_gone(find: Find, announcement: Announcement, in_use: set[str]) -> list[int]:
    """Before the kernel's caches are dropped: DELETE for what it still has under an old name.

    Returns the directories that the kernel now holds for dead. One that is somebody's working
    directory (`in_use`) is spared: a later restore may bring it back.
    """
    dead = []
    for gone in announcement.gone:
        if gone.is_directory and _is_used(os.fsdecode(gone.path), in_use):
            continue
        with contextlib.suppress(OSError), find(gone.path) as (fd, name):
            if os.stat(name, dir_fd=fd, follow_symlinks=False).st_ino != gone.ino:
                continue  # somebody made the kernel look again already
            if gone.is_directory:
                os.rmdir(name, dir_fd=fd)
                dead.append(gone.ino)
            else:
                os.unlink(name, dir_fd=fd)
    return dead


def _is_used(path: str, in_use: set[str]) -> bool:
    return any(used == path or used.startswith(path + "/") for used in in_use)


def announce_new(find: Find, announcement: Announcement) -> None:
    """After the caches were dropped: CREATE, MODIFY and CLOSE_WRITE, or ATTRIB on directories."""
    for appeared in announcement.appeared:
        with contextlib.suppress(OSError), find(appeared.path) as (fd, name):
            _make(fd, name, appeared)
    for modified in announcement.modified:
        try:
            with find(modified.path) as (fd, name):
                _touch(fd, name, modified)
        except OSError as error:
            log.info("watchers were not told of %r: %s", modified.path, error)
    for path, mode in announcement.directories:
        with contextlib.suppress(OSError), find(path) as (fd, name):
            _chmod(fd, name, mode)


def _make(fd: int, name: bytes, appeared: Appeared) -> None:
    mode = appeared.mode
    if stat.S_ISDIR(mode):
        os.mkdir(name, dir_fd=fd)
    elif stat.S_ISLNK(mode):
        os.symlink(appeared.target, name, dir_fd=fd)
    elif not (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)):
        os.mknod(name, stat.S_IFMT(mode) | 0o600, dir_fd=fd)


def _chmod(fd: int, name: bytes, mode: int) -> None:
    """Of the name itself: chmod(2) would follow a symbolic link that came there meanwhile."""
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        os.chmod(f"/proc/self/fd/{place}", stat.S_IMODE(mode))
    finally:
        os.close(place)


def _touch(fd: int, name: bytes, modified: Modified) -> None:
    """MODIFY and CLOSE_WRITE for a regular file, ATTRIB for others; its times stay."""
    if not stat.S_ISREG(modified.mode):
        _chmod(fd, name, modified.mode)
        return
    try:
        file = os.open(name, _WRITE, dir_fd=fd)
    except PermissionError:
        _chmod(fd, name, 0o600)  # a ghost's: only the kernel sees it
        file = os.open(name, _WRITE, dir_fd=fd)
    try:
        os.ftruncate(file, modified.size)
    finally:
        os.close(file)
    os.utime(name, ns=(modified.atime, modified.mtime), dir_fd=fd, follow_symlinks=False)
