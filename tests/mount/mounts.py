"""Mounts that `tests.support.mounting` does not make: for other users, and by another user."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cowfs
from tests.support import mounting
from tests.support.checking import check_store
from tests.support.mounting import Mounted

_ROOT = Path(cowfs.__file__).resolve().parent.parent
_END_SECONDS = 30


@contextlib.contextmanager
def shared_mount(
    base: Path, *, allow_other: bool = False, prefix: tuple[str, ...] = (), python: str = ""
) -> Iterator[Mounted]:
    """Mount `base` over itself, with the store beside it; checked at the end as `mounted` does.

    prefix: a command that starts the daemon and becomes it (setpriv). python: the interpreter.
    """
    store = base.with_name(base.name + ".store")
    config = {"base": str(base), "mountpoint": str(base), "store": str(store)}
    ready, tell = os.pipe()
    process = subprocess.Popen(
        [
            *prefix,
            python or sys.executable,
            "-m",
            "cowfs.daemon",
            json.dumps({**config, "allow_other": allow_other}),
            str(tell),
        ],
        pass_fds=(tell,),
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *_site_packages()])},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(tell)
    mounting._ready_pipes[process.pid] = ready
    mount = Mounted(base, base, store, process)
    try:
        mounting._wait_ready(mount)
        yield mount
        process.terminate()
        assert process.wait(_END_SECONDS) == 0, mount.log()
    finally:
        mounting._end(mount)
    assert not [line for line in mount.log().splitlines() if mounting._is_error(line)], mount.log()
    base_fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        check_store(store, base_fd)
    finally:
        os.close(base_fd)


def killed_and_mounted_again(mounted: Mounted, mount: Callable[..., Mounted]) -> Mounted:
    """Kill the daemon, remove the dead mount as `cowfs mount` does, and mount again."""
    mounted.kill()
    mounting.remove_mounts(mounted.mountpoint, leave=mounted.mounts_before)
    at = None if mounted.in_place else mounted.mountpoint
    return mount(mounted.base, mounted.store, at)


def _site_packages() -> list[str]:
    return [path for path in sys.path if path.endswith("site-packages")]
