"""System calls that must fail, and with which errno: POSIX, the Linux man pages, and ext4 agree.

Each row runs in a directory that `prepare` has filled.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.mount.calls import EXCHANGE, NOREPLACE, linkat, renameat2, write_file

_LONG = "n" * 256
_CREATE = os.O_CREAT | os.O_WRONLY


class Row(NamedTuple):
    """A situation, the call in it, and the errno's name ("" for success)."""

    situation: str
    call: Callable[[Path], object]
    errno: str


def prepare(top: Path) -> None:
    """Something of every kind."""
    write_file(top / "file", b"content")
    write_file(top / "other", b"other")
    (top / "full").mkdir()
    write_file(top / "full/in", b"in")
    (top / "full/sub").mkdir()
    (top / "empty").mkdir()
    (top / "empty2").mkdir()
    os.symlink("file", top / "link")
    os.symlink("full", top / "dirlink")
    os.symlink("nowhere", top / "dangling")
    os.symlink("loop", top / "loop")
    os.mkfifo(top / "fifo")
    os.link(top / "file", top / "hard")


ROWS = [
    # look-up
    Row("absent", lambda t: os.stat(t / "absent"), "ENOENT"),
    Row("below absent", lambda t: os.stat(t / "absent/x"), "ENOENT"),
    Row("below a file", lambda t: os.stat(t / "file/x"), "ENOTDIR"),
    Row("file with slash", lambda t: os.stat(f"{t}/file/"), "ENOTDIR"),
    Row("dangling link", lambda t: os.stat(t / "dangling"), "ENOENT"),
    Row("dangling link itself", lambda t: os.lstat(t / "dangling"), ""),
    Row("loop", lambda t: os.stat(t / "loop"), "ELOOP"),
    Row("below a link to a file", lambda t: os.stat(t / "link/x"), "ENOTDIR"),
    Row("below a link to a directory", lambda t: os.stat(t / "dirlink/in"), ""),
    Row("long name", lambda t: os.stat(t / _LONG), "ENAMETOOLONG"),
    Row("long name below a file", lambda t: os.stat(t / "file" / _LONG), "ENOTDIR"),
    Row("below a fifo", lambda t: os.stat(t / "fifo/x"), "ENOTDIR"),
    # open
    Row("open absent", lambda t: os.open(t / "absent", os.O_RDONLY), "ENOENT"),
    Row(
        "create existing exclusively", lambda t: os.open(t / "file", _CREATE | os.O_EXCL), "EEXIST"
    ),
    Row(
        "create on a link exclusively", lambda t: os.open(t / "link", _CREATE | os.O_EXCL), "EEXIST"
    ),
    Row("create a directory's name", lambda t: os.open(t / "full", _CREATE), "EISDIR"),
    Row("create with slash", lambda t: os.open(f"{t}/new/", _CREATE), "EISDIR"),
    Row("create below a file", lambda t: os.open(t / "file/x", _CREATE), "ENOTDIR"),
    Row("create below absent", lambda t: os.open(t / "absent/x", _CREATE), "ENOENT"),
    Row("create a long name", lambda t: os.open(t / _LONG, _CREATE), "ENAMETOOLONG"),
    Row("write a directory", lambda t: os.open(t / "full", os.O_WRONLY), "EISDIR"),
    Row("truncate a directory on open", lambda t: os.open(t / "full", os.O_TRUNC), "EISDIR"),
    Row("a file as directory", lambda t: os.open(t / "file", os.O_DIRECTORY), "ENOTDIR"),
    Row("a link not followed", lambda t: os.open(t / "link", os.O_NOFOLLOW), "ELOOP"),
    Row("list a file", lambda t: os.listdir(t / "file"), "ENOTDIR"),
    Row("list absent", lambda t: os.listdir(t / "absent"), "ENOENT"),
    Row("read a directory", lambda t: os.read(os.open(t / "full", os.O_RDONLY), 1), "EISDIR"),
    Row("truncate absent", lambda t: os.truncate(t / "absent", 0), "ENOENT"),
    Row("truncate a directory", lambda t: os.truncate(t / "full", 0), "EISDIR"),
    Row("truncate to less than nothing", lambda t: os.truncate(t / "file", -1), "EINVAL"),
    # mkdir, mknod, symlink
    Row("mkdir existing directory", lambda t: os.mkdir(t / "full"), "EEXIST"),
    Row("mkdir existing file", lambda t: os.mkdir(t / "file"), "EEXIST"),
    Row("mkdir on a dangling link", lambda t: os.mkdir(t / "dangling"), "EEXIST"),
    Row("mkdir below absent", lambda t: os.mkdir(t / "absent/x"), "ENOENT"),
    Row("mkdir below a file", lambda t: os.mkdir(t / "file/x"), "ENOTDIR"),
    Row("mkdir with slash", lambda t: os.mkdir(f"{t}/new/"), ""),
    Row("mkfifo existing", lambda t: os.mkfifo(t / "file"), "EEXIST"),
    Row("mknod with slash", lambda t: os.mknod(f"{t}/new/"), "ENOENT"),
    Row("symlink existing", lambda t: os.symlink("x", t / "file"), "EEXIST"),
    Row("symlink on a dangling link", lambda t: os.symlink("x", t / "dangling"), "EEXIST"),
    Row("empty symlink", lambda t: os.symlink("", t / "new"), "ENOENT"),
    Row("readlink of a file", lambda t: os.readlink(t / "file"), "EINVAL"),
    Row("readlink of a directory", lambda t: os.readlink(t / "full"), "EINVAL"),
    # link
    Row("link a directory", lambda t: os.link(t / "full", t / "new"), "EPERM"),
    Row("link on existing", lambda t: os.link(t / "file", t / "other"), "EEXIST"),
    Row("link on itself", lambda t: os.link(t / "file", t / "file"), "EEXIST"),
    Row("link absent", lambda t: os.link(t / "absent", t / "new"), "ENOENT"),
    Row("link below a file", lambda t: os.link(t / "file", t / "other/x"), "ENOTDIR"),
    Row("link a symbolic link", lambda t: linkat(t / "dangling", t / "new"), ""),
    Row("link to another file system", lambda t: os.link(t / "file", "/dev/shm/x"), "EXDEV"),
    # unlink, rmdir
    Row("unlink absent", lambda t: os.unlink(t / "absent"), "ENOENT"),
    Row("unlink a directory", lambda t: os.unlink(t / "empty"), "EISDIR"),
    Row("unlink below a file", lambda t: os.unlink(t / "file/x"), "ENOTDIR"),
    Row("unlink a file with slash", lambda t: os.unlink(f"{t}/file/"), "ENOTDIR"),
    Row("unlink a link to a directory", lambda t: os.unlink(t / "dirlink"), ""),
    Row("rmdir a full directory", lambda t: os.rmdir(t / "full"), "ENOTEMPTY"),
    Row("rmdir a file", lambda t: os.rmdir(t / "file"), "ENOTDIR"),
    Row("rmdir a link", lambda t: os.rmdir(t / "dirlink"), "ENOTDIR"),
    Row("rmdir absent", lambda t: os.rmdir(t / "absent"), "ENOENT"),
    Row("rmdir dot", lambda t: os.rmdir(f"{t}/empty/."), "EINVAL"),
    Row("rmdir dot dot", lambda t: os.rmdir(f"{t}/full/sub/.."), "ENOTEMPTY"),
    # rename
    Row("rename absent", lambda t: os.rename(t / "absent", t / "new"), "ENOENT"),
    Row("rename below absent", lambda t: os.rename(t / "file", t / "absent/x"), "ENOENT"),
    Row("rename below a file", lambda t: os.rename(t / "file", t / "other/x"), "ENOTDIR"),
    Row("file on a directory", lambda t: os.rename(t / "file", t / "empty"), "EISDIR"),
    Row("directory on a file", lambda t: os.rename(t / "empty", t / "file"), "ENOTDIR"),
    Row("directory on a full one", lambda t: os.rename(t / "empty", t / "full"), "ENOTEMPTY"),
    Row("directory on an empty one", lambda t: os.rename(t / "full", t / "empty"), ""),
    Row("directory into itself", lambda t: os.rename(t / "full", t / "full/sub/x"), "EINVAL"),
    Row("directory onto its parent", lambda t: os.rename(t / "full/sub", t / "full"), "ENOTEMPTY"),
    Row("rename a file with slash", lambda t: os.rename(t / "file", f"{t}/new/"), "ENOTDIR"),
    Row("rename a directory with slash", lambda t: os.rename(t / "empty", f"{t}/new/"), ""),
    Row("rename dot", lambda t: os.rename(f"{t}/empty/.", t / "new"), "EBUSY"),
    Row("rename to a long name", lambda t: os.rename(t / "file", t / _LONG), "ENAMETOOLONG"),
    Row("rename on a hard link", lambda t: os.rename(t / "file", t / "hard"), ""),
    Row("rename on itself", lambda t: os.rename(t / "full", t / "full"), ""),
    Row("rename on a link", lambda t: os.rename(t / "file", t / "dirlink"), ""),
    Row("directory on a link", lambda t: os.rename(t / "empty", t / "dirlink"), "ENOTDIR"),
    Row("rename to another file system", lambda t: os.rename(t / "file", "/dev/shm/x"), "EXDEV"),
    Row("noreplace existing", lambda t: renameat2(t / "file", t / "other", NOREPLACE), "EEXIST"),
    Row("noreplace on itself", lambda t: renameat2(t / "file", t / "file", NOREPLACE), "EEXIST"),
    Row("noreplace absent", lambda t: renameat2(t / "absent", t / "new", NOREPLACE), "ENOENT"),
    Row("noreplace new", lambda t: renameat2(t / "file", t / "new", NOREPLACE), ""),
    Row("exchange with absent", lambda t: renameat2(t / "file", t / "absent", EXCHANGE), "ENOENT"),
    Row("exchange absent", lambda t: renameat2(t / "absent", t / "file", EXCHANGE), "ENOENT"),
    Row("exchange kinds", lambda t: renameat2(t / "file", t / "full", EXCHANGE), ""),
    Row("exchange with below", lambda t: renameat2(t / "full", t / "full/sub", EXCHANGE), "EINVAL"),
    Row("exchange with above", lambda t: renameat2(t / "full/sub", t / "full", EXCHANGE), "EINVAL"),
    Row("exchange with itself", lambda t: renameat2(t / "file", t / "file", EXCHANGE), ""),
    Row("both flags", lambda t: renameat2(t / "file", t / "other", 3), "EINVAL"),
    Row("unknown flag", lambda t: renameat2(t / "file", t / "other", 64), "EINVAL"),
    # attributes
    Row("chmod absent", lambda t: os.chmod(t / "absent", 0o600), "ENOENT"),
    Row("chmod a dangling link", lambda t: os.chmod(t / "dangling", 0o600), "ENOENT"),
    Row("utime absent", lambda t: os.utime(t / "absent"), "ENOENT"),
    Row("chown a dangling link", lambda t: os.chown(t / "dangling", -1, -1), "ENOENT"),
    Row("lchown a dangling link", lambda t: os.lchown(t / "dangling", -1, -1), ""),
    Row("chdir to a file", lambda t: os.chdir(t / "file"), "ENOTDIR"),
    Row("execute a file without the bit", lambda t: os.execv(t / "file", ["x"]), "EACCES"),
    Row("execute a directory", lambda t: os.execv(t / "full", ["x"]), "EACCES"),
    Row("getxattr absent", lambda t: os.getxattr(t / "file", "user.absent"), "ENODATA"),
    Row("getxattr of no class", lambda t: os.getxattr(t / "file", "nonsense"), "ENOTSUP"),
    Row("setxattr of no class", lambda t: os.setxattr(t / "file", "nonsense", b""), "ENOTSUP"),
    Row("setxattr on a fifo", lambda t: os.setxattr(t / "fifo", "user.x", b""), "EPERM"),
    Row("removexattr absent", lambda t: os.removexattr(t / "file", "user.absent"), "ENODATA"),
]
