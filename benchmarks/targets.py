"""The filesystems that are compared: each opens as a context manager on a directory to work in."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cowfs_command import Cowfs
from benchmarks.system import BenchError, Env, mounts_below, poll, unmount

MOUNT_SECONDS = 30.0
"""How long a peer may take to appear or to go away before that is an error."""


@dataclass(frozen=True)
class Place:
    """An open target: where to work, and the daemons that serve it."""

    root: Path
    pids: tuple[int, ...] = ()


Opener = Callable[[Path, Env], AbstractContextManager[Place]]


@dataclass(frozen=True)
class Target:
    """A filesystem under test.

    ``open(work, env)`` uses the empty directory *work* for all it stores and yields the place; on
    leaving, whatever happened, nothing is mounted and no daemon of its own runs.
    """

    name: str
    open: Opener
    program: str | None = None
    """The executable that must be installed, or None if there is always one."""

    def obstacle(self) -> str | None:
        """Why this target cannot be measured here, or None."""
        if self.program and not shutil.which(self.program):
            return "not installed"
        return None


@contextmanager
def native(work: Path, env: Env) -> Iterator[Place]:
    """A plain directory on the filesystem on which the others keep their data."""
    yield Place(work)


def _unmounted(mountpoint: Path) -> bool:
    """Unmount if mounted; whether nothing is mounted any more."""
    return not mounts_below(mountpoint) or unmount(mountpoint)


@contextmanager
def _foreground(argv: list[str], mountpoint: Path, env: Env) -> Iterator[Place]:
    """Run a FUSE server in the foreground until the body ends."""
    log = mountpoint.with_suffix(".log")
    with log.open("wb") as output:
        # A session of its own: Ctrl-C shall reach the runner, which then unmounts in order.
        server = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        poll(
            lambda: bool(mounts_below(mountpoint)) or server.poll() is not None,
            seconds=MOUNT_SECONDS,
        )
        if not mounts_below(mountpoint):
            raise BenchError(f"{argv[0]} did not mount: {log.read_text(errors='replace')[-400:]}")
        yield Place(mountpoint, (server.pid,))
    finally:
        if not poll(lambda: _unmounted(mountpoint), seconds=MOUNT_SECONDS, interval=0.1):
            unmount(mountpoint, lazy=True)
        try:
            server.wait(MOUNT_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextmanager
def bindfs(work: Path, env: Env) -> Iterator[Place]:
    """bindfs: passes every request on to another directory, path by path. In C."""
    lower, mountpoint = work / "lower", work / "mount"
    lower.mkdir()
    mountpoint.mkdir()
    with _foreground(["bindfs", "-f", str(lower), str(mountpoint)], mountpoint, env) as place:
        yield place


@contextmanager
def fuse_overlayfs(work: Path, env: Env) -> Iterator[Place]:
    """fuse-overlayfs over an empty lower directory: all work is on new files. In C."""
    layers = {name: work / name for name in ("lowerdir", "upperdir", "workdir")}
    mountpoint = work / "mount"
    for directory in (*layers.values(), mountpoint):
        directory.mkdir()
    options = ",".join(f"{name}={path}" for name, path in layers.items())
    argv = ["fuse-overlayfs", "-f", "-o", options, str(mountpoint)]
    with _foreground(argv, mountpoint, env) as place:
        yield place


@contextmanager
def cowfs(work: Path, env: Env) -> Iterator[Place]:
    """cowfs mounted over an empty directory, its store beside it."""
    base = work / "base"
    base.mkdir()
    with Cowfs.installed(env).mounted(base, work / "store") as mount:
        yield Place(base, (mount.pid,))


TARGETS = (
    Target("native", native),
    Target("cowfs", cowfs),
    Target("bindfs", bindfs, "bindfs"),
    Target("fuse-overlayfs", fuse_overlayfs, "fuse-overlayfs"),
)
