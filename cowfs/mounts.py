"""Mounts as the kernel has them: what is mounted where, whether one is dead, and removing one.

Imports only the standard library, and little of it: every command looks for mounts.

Threading: stateless functions.
"""

from __future__ import annotations

import errno
import os

MNT_FORCE, MNT_DETACH = 1, 2
FUSE_DEVICE = "/dev/fuse"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Mount:
    """One row of mountinfo (proc(5)).

    number: the kernel's, in the row as text. device: major:minor. root: which directory of the file
    system is mounted. mountpoint: as the process sees it. options: those of the mount, as nosuid or
    ro. follows: mounts and unmounts elsewhere are followed. kind, source: the file system's.
    """

    __slots__ = (
        "device",
        "follows",
        "kind",
        "mountpoint",
        "number",
        "options",
        "root",
        "source",
    )

    def __init__(self, row: list[str], at: int) -> None:
        """`row`: the fields of a line; `at`: where the separator is."""
        self.number = row[0]
        self.device = row[2]
        self.root = unescape(row[3])
        self.mountpoint = unescape(row[4])
        self.options = frozenset(row[5].split(","))
        self.follows = any(field.startswith(("shared:", "master:")) for field in row[6:at])
        self.kind = row[at + 1]
        self.source = unescape(row[at + 2])


def mounts(process: str = "self", kind: str = "") -> Iterator[Mount]:
    """What a process sees mounted, in mount order; only of one kind of file system if given.

    Text is with surrogateescape. Nothing for a process that is gone or cannot be looked at; raises
    OSError when this process cannot see what it has mounted itself, for lack of a descriptor.
    """
    wanted = f" {kind} "
    path = f"/proc/{process}/mountinfo"
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line for line in file if not kind or wanted in line]
    except OSError:
        if process == "self":
            raise
        return
    for line in lines:
        row = line.rstrip("\n").split(" ")
        try:
            mount = Mount(row, row.index("-", 6))
        except (ValueError, IndexError):
            continue
        if not kind or mount.kind == kind:
            yield mount


def unescape(text: str) -> str:
    """A field of mountinfo: octal escapes of space, tab, newline and backslash.

    What is no such escape stays as it is.
    """
    first, *parts = text.split("\\")
    out = [first]
    for part in parts:
        digits = part[:3]
        if len(digits) == 3 and not digits.strip("01234567"):
            out.append(chr(int(digits, 8)) + part[3:])
        else:
            out.append("\\" + part)
    return "".join(out)


def top_mount(mountpoint: str) -> Mount | None:
    """The mount that is on top there."""
    found = None
    for mount in mounts():
        if mount.mountpoint == mountpoint:
            found = mount
    return found


def place_of(device: str, mountpoint: str) -> str:
    """Where a file system is mounted now that was mounted at `mountpoint`: a directory above may
    have been renamed since, and something else have come there. Raises FileNotFoundError."""
    found = [mount.mountpoint for mount in mounts() if mount.device == device]
    if not found:
        raise FileNotFoundError(errno.ENOENT, "it is not mounted any more", mountpoint)
    return mountpoint if mountpoint in found else found[0]


def is_dead(mountpoint: str) -> bool:
    """Whether the mount there has lost its daemon.

    statfs(2) is never answered from the kernel's caches, as stat(2) may be.
    """
    try:
        os.statvfs(mountpoint)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def unmount(mountpoint: str, *, lazy: bool, force: bool = False) -> None:
    """Remove the kernel's mount: umount2(2) as root, else fusermount3(1).

    force: its pending requests fail (root only). Raises OSError, EBUSY when it is in use.
    """
    if os.geteuid() == 0:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        flags = (MNT_DETACH if lazy else 0) | (MNT_FORCE if force else 0)
        if libc.umount2(os.fsencode(mountpoint), flags) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return
    import subprocess

    command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", mountpoint]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
    except OSError as error:
        raise OSError(error.errno, f"fusermount3: {error.strerror}") from None
    if done.returncode != 0:
        text = done.stderr.strip()
        raise OSError(errno.EBUSY if "busy" in text.lower() else errno.EPERM, text)


def fuse_fault(device: str = FUSE_DEVICE) -> tuple[str, str] | None:
    """Why FUSE cannot be used here, and what to do; None when it can."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        advice = "As root: `modprobe fuse`; start a container with --device /dev/fuse."
        return f"there is no {device}", advice
    except PermissionError:
        advice = f"As root: `chmod 666 {device}` (most distributions ship it that way)."
        return f"{device} is closed to this user", advice
    except OSError as error:
        return f"{device} cannot be opened: {error.strerror}", "As root: `modprobe fuse`."
    return None


def mount_fault(mountpoint: str) -> tuple[str, str] | None:
    """Why this user cannot mount there, and what to do; None when he can, as far as can be seen.

    The rules are those of fusermount3(1), which mounts for whoever is not root.
    """
    if os.geteuid() == 0:
        return None
    st = os.stat(mountpoint)
    advice = (
        "Name an empty directory of your own with --at DIR, or let root mount it. Nothing was"
        " changed."
    )
    if not os.access(mountpoint, os.W_OK):
        return f"only root mounts over a directory that you cannot write, as {mountpoint}", advice
    if st.st_mode & 0o1000 and st.st_uid != os.geteuid():
        return f"only its owner and root mount over {mountpoint}, which is sticky", advice
    return None
