"""Dead mounts: the kernel's mount of a daemon that is gone. Every access to one fails with
ENOTCONN ("Transport endpoint is not connected") until it is unmounted.
"""

from __future__ import annotations

import ctypes
import os
import subprocess

from cowfs.client import places
from cowfs.daemon.unmounting import is_dead
from cowfs.errors import UnmountFailedError

_MNT_FORCE = 1
_MNT_DETACH = 2


def clean_up(mountpoint: str) -> bool:
    """Remove the dead mounts at a mountpoint; returns whether there were any.

    Raises UnmountFailedError.
    """
    cleaned = False
    while any(at == mountpoint for at, _ in places.mounts()) and is_dead(mountpoint):
        _detach(mountpoint)
        cleaned = True
    return cleaned


def _detach(mountpoint: str) -> None:
    """A lazy unmount: umount2(2) as root, else fusermount3(1)."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(mountpoint), _MNT_FORCE | _MNT_DETACH) != 0:
            raise UnmountFailedError(path=mountpoint, detail=os.strerror(ctypes.get_errno()))
        return
    try:
        done = subprocess.run(
            ["fusermount3", "-u", "-z", "--", mountpoint],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
    except OSError as error:
        raise UnmountFailedError(path=mountpoint, detail=f"fusermount3: {error}") from None
    if done.returncode != 0:
        raise UnmountFailedError(path=mountpoint, detail=done.stderr.strip())
