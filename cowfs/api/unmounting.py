"""Unmounting, and applying what a workspace that is not mounted has.

A dead mount is the kernel's mount of a daemon that is gone. Every access to one fails with
ENOTCONN ("Transport endpoint is not connected") until it is unmounted.

Threading: stateless functions.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cowfs import mounts
from cowfs.api.mounting import reap
from cowfs.api.opening import Daemon, Progress, Step, no_step, writing
from cowfs.client import places
from cowfs.client.places import Place
from cowfs.client.rpc import RpcError
from cowfs.errors import UnmountFailedError

if TYPE_CHECKING:
    from cowfs.volume.history import Author

_RETRY_SECONDS = 0.25
_END_SECONDS = 120.0
"""How long a daemon may take to end once it has said that it is unmounted."""


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


def nobody_waits(progress: dict[str, Any]) -> None:
    """A `Progress` for those who do not want to know."""


def ask(
    daemon: Daemon,
    params: dict[str, Any],
    timeout: float,
    progress: Progress = nobody_waits,
    say: Callable[[str], object] = str,
) -> dict[str, Any]:
    """Have the daemon unmount; waits `timeout` seconds for those who use the mount.

    say: told who is waited for. Raises RpcError (COWFS_BUSY), DaemonUnreachableError.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return dict(daemon.call("unmount", params, progress))
        except RpcError as error:
            left = deadline - time.monotonic()
            if error.error.get("code") != "COWFS_BUSY" or left <= 0:
                raise
            say(f"waiting for {error.error.get('details', {}).get('holders', 'other processes')}")
            time.sleep(min(_RETRY_SECONDS, left))


def wait_for_end(place: Place, pid: int | None) -> None:
    """Until the daemon is gone and the store is free. Raises UnmountFailedError."""
    from cowfs.store.env import owner_pid

    if pid is not None:
        try:
            process = os.pidfd_open(pid)
        except OSError:
            pass  # gone already
        else:
            try:
                poll = select.poll()
                poll.register(process, select.POLLIN)
                poll.poll(_END_SECONDS * 1000)
            finally:
                os.close(process)
    reap()
    holder = owner_pid(Path(place.store))
    if holder is not None and holder == pid:
        raise UnmountFailedError(
            path=place.mountpoint, detail=f"its daemon (pid {pid}) has not ended"
        )


def apply_offline(
    place: Place,
    author: Author,
    progress: Progress = nobody_waits,
    step: Step = no_step,
    *,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Apply a workspace that is not mounted. Raises ApplyConflictError and what opening raises."""
    from cowfs.service.apply import apply

    def told(**params: Any) -> None:
        progress(params)

    with writing(place, step) as engine:
        return apply(engine, author, told, dry_run=dry_run).to_json()
