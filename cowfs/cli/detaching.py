"""Dead mounts: the kernel's mount of a daemon that is gone. Every access to one fails with
ENOTCONN ("Transport endpoint is not connected") until it is unmounted.
"""

from __future__ import annotations

from cowfs import mounts
from cowfs.client import places
from cowfs.errors import UnmountFailedError


def clean_up(mountpoint: str) -> bool:
    """Remove the dead mounts at a mountpoint; returns whether there were any.

    Raises UnmountFailedError.
    """
    cleaned = False
    while any(at == mountpoint for at, _ in places.mounts()) and mounts.is_dead(mountpoint):
        try:
            mounts.unmount(mountpoint, lazy=True, force=True)
        except OSError as error:
            raise UnmountFailedError(path=mountpoint, detail=error.strerror) from None
        cleaned = True
    return cleaned
