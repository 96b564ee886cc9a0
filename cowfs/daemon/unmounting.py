"""Mounts as the kernel has them: whether one is dead, and removing one.

Imports only the standard library: commands use it as well.

Threading: stateless functions.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess

_MNT_DETACH = 2


def is_dead(mountpoint: str) -> bool:
    """Whether the mount there has lost its daemon.

    statfs(2) is never answered from the kernel's caches, as stat(2) may be.
    """
    try:
        os.statvfs(mountpoint)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def kernel_unmount(mountpoint: str, *, lazy: bool) -> None:
    """Remove the kernel's mount: umount2(2) as root, else fusermount3(1). Raises OSError."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(mountpoint), _MNT_DETACH if lazy else 0) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return
    command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", mountpoint]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        text = done.stderr.strip()
        raise OSError(errno.EBUSY if "busy" in text.lower() else errno.EPERM, text)
