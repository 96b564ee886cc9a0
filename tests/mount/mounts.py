"""Mounts that `tests.support.mounting` does not make: for other users, and by another user."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import cowfs
from tests.mount.calls import NOBODY, ChildFailedError, abort, in_child, mount_at, umount
from tests.support import mounting
from tests.support.checking import check_store
from tests.support.mounting import Mounted

_ROOT = Path(cowfs.__file__).resolve().parent.parent
_END_SECONDS = 30
_DEATH_SECONDS = 20


def need_users_mounts() -> None:
    """Skips the test where root cannot become a user who mounts."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root; the other tests run as a user already")
    if not _nobody_may_open("/dev/fuse"):
        mode = stat.S_IMODE(os.stat("/dev/fuse").st_mode)
        pytest.skip(f"/dev/fuse is closed to ordinary users (mode {mode:o}); .ci/run opens it")
    if not shutil.which("fusermount3"):
        pytest.skip("fusermount3 is not installed")


def _nobody_may_open(path: str) -> bool:
    try:
        in_child(lambda: os.close(os.open(path, os.O_RDWR)), uid=NOBODY)
    except ChildFailedError:
        return False
    return True


class Interpreter(NamedTuple):
    """A Python that a user can run: the program, and its search paths of modules and libraries."""

    program: str
    path: str
    libraries: str = ""


def own_interpreter() -> Interpreter:
    """The one that runs the tests."""
    return Interpreter(sys.executable, os.pathsep.join([str(_ROOT), *_site_packages()]))


@contextlib.contextmanager
def interpreter_for(uid: int, directory: Path) -> Iterator[Interpreter]:
    """A Python with cowfs that a user can reach.

    What lies in a directory that is closed to the user (as /root is) is bind-mounted below
    `directory` for the time of the block; that needs root.
    """
    bound: list[Path] = []

    def reachable(path: str) -> str:
        if _can_read(uid, path):
            return path
        place = directory / f"bound{len(bound)}"
        place.mkdir()
        # A test that was killed leaves this: who removes what is left must not empty the original.
        mount_at(path, place, read_only=True)
        bound.append(place)
        return str(place)

    try:
        prefix = reachable(sys.base_prefix)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        modules = [reachable(path) for path in [str(_ROOT), *_site_packages()]]
        libraries = "" if prefix == sys.base_prefix else f"{prefix}/lib"
        yield Interpreter(f"{prefix}/bin/python{version}", os.pathsep.join(modules), libraries)
    finally:
        for place in reversed(bound):
            umount(place, lazy=True)


def _can_read(uid: int, path: str) -> bool:
    def check() -> None:
        os.listdir(path)

    try:
        in_child(check, uid=uid)
    except ChildFailedError:
        return False
    return True


@contextlib.contextmanager
def shared_mount(
    base: Path,
    *,
    allow_other: bool = False,
    uid: int | None = None,
    interpreter: Interpreter | None = None,
) -> Iterator[Mounted]:
    """Mount `base` over itself, with the store beside it; checked at the end as `mounted` does.

    uid: the daemon's user, with the group of the same number.
    """
    python = interpreter or own_interpreter()
    store = base.with_name(base.name + ".store")
    config = {"base": str(base), "mountpoint": str(base), "store": str(store)}
    ready, tell = os.pipe()
    process = subprocess.Popen(
        [
            python.program,
            "-m",
            "cowfs.daemon",
            json.dumps({**config, "allow_other": allow_other, "automatic": False}),
            str(tell),
        ],
        pass_fds=(tell,),
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(base.parent),
            "PYTHONPATH": python.path,
            "PYTHONDONTWRITEBYTECODE": "1",
            **({"LD_LIBRARY_PATH": python.libraries} if python.libraries else {}),
        },
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
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


def kill(mounted: Mounted) -> None:
    """Kill the daemon as a crash does. Raises AssertionError when it cannot die.

    A thread of its own that waits for an answer through the mount would keep the process, and with
    it the mount, from ending: for good, if the connection were not broken off here.
    """
    mounted.process.kill()
    try:
        mounted.process.wait(_DEATH_SECONDS)
    except subprocess.TimeoutExpired:
        abort(mounted.mountpoint)
        mounted.process.wait()
        raise AssertionError("the killed daemon waited for its own mount") from None


def killed_and_mounted_again(mounted: Mounted, mount: Callable[..., Mounted]) -> Mounted:
    """Kill the daemon, remove the dead mount as `cowfs mount` does, and mount again."""
    kill(mounted)
    mounting.remove_mounts(mounted.mountpoint, leave=mounted.mounts_before)
    at = None if mounted.in_place else mounted.mountpoint
    return mount(mounted.base, mounted.store, at)


def _site_packages() -> list[str]:
    return [path for path in sys.path if path.endswith("site-packages")]
