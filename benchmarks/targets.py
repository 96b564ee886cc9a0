"""The filesystems that are compared: a class for each, with a setup and a teardown."""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import pypi_peer
from benchmarks.cowfs_command import Cowfs
from benchmarks.system import BenchError, Env, mounts_below, poll, run_tool, unmount

MOUNT_SECONDS = 30.0
"""How long a peer may take to appear or to go away before that is an error."""


@dataclass(frozen=True)
class Place:
    """A target that is set up: where to work, and the daemons that serve it."""

    root: Path
    pids: tuple[int, ...] = ()
    mounted: bool = True
    """Whether *root* is a mount point."""

    def check(self) -> None:
        """Raise :class:`BenchError` if it is not mounted any more.

        A server that dies may leave the plain directory below, which would then be measured.
        """
        if self.mounted and not os.path.ismount(self.root):
            raise BenchError("it is not mounted any more; its server has ended")


class Target(ABC):
    """A filesystem under test, in one empty directory *work* that holds all it stores."""

    name: str

    def __init__(self, work: Path, env: Env) -> None:
        self.work = work
        self.env = env

    @classmethod
    def obstacle(cls) -> str | None:
        """Why this target cannot be measured on this machine, or None."""
        return None

    @abstractmethod
    def setup(self) -> Place:
        """Mount it. When this raises, nothing is left mounted or running."""

    def teardown(self) -> None:  # noqa: B027 - a plain directory has nothing to do
        """Whatever happened: nothing is mounted and no daemon of its own runs afterwards."""


class Native(Target):
    """A plain directory on the filesystem on which the others keep their data."""

    name = "native"

    def setup(self) -> Place:
        return Place(self.work, mounted=False)


class CowfsTarget(Target):
    """cowfs mounted over an empty directory, its store beside it."""

    name = "cowfs"

    def setup(self) -> Place:
        base = self.work / "base"
        base.mkdir()
        self._stack = ExitStack()
        cowfs = Cowfs.installed(self.env)
        mounted = cowfs.mounted(base, self.work / "store", automatic=True)
        return Place(base, (self._stack.enter_context(mounted).pid,))

    def teardown(self) -> None:
        self._stack.close()


class FuseServer(Target):
    """A peer whose server stays in the foreground."""

    program: str
    package: str | None = None
    """Debian's package, when it is not named like the program."""
    directories: tuple[str, ...]

    @classmethod
    def obstacle(cls) -> str | None:
        if shutil.which(cls.program):
            return None
        return f"{cls.program} is not installed (apt-get install {cls.package or cls.program})"

    def argv(self, mountpoint: Path) -> Sequence[str | Path]:
        """The command that serves *mountpoint* in the foreground."""
        raise NotImplementedError

    def setup(self) -> Place:
        mountpoint = self.work / "mount"
        for name in (*self.directories, "mount"):
            (self.work / name).mkdir()
        log = self.work / "server.log"
        argv = [os.fspath(part) for part in self.argv(mountpoint)]
        with log.open("wb") as output:
            # A session of its own: Ctrl-C shall reach the runner, which then unmounts in order.
            self._server = subprocess.Popen(
                argv,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        poll(
            lambda: bool(mounts_below(mountpoint)) or self._server.poll() is not None,
            seconds=MOUNT_SECONDS,
        )
        if not mounts_below(mountpoint):
            self.teardown()
            raise BenchError(f"{argv[0]} did not mount: {log.read_text(errors='replace')[-400:]}")
        return Place(mountpoint, (self._server.pid,))

    def teardown(self) -> None:
        try:
            detach(self.work / "mount")
        finally:
            try:
                # One that never mounted is not told to end by its unmount.
                if not poll(lambda: self._server.poll() is not None, seconds=2.0):
                    self._server.terminate()
                self._server.wait(MOUNT_SECONDS)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()


class Bindfs(FuseServer):
    """bindfs: passes every request on to another directory, path by path. In C."""

    name = program = "bindfs"
    directories = ("lower",)

    def argv(self, mountpoint: Path) -> Sequence[str | Path]:
        # By default it opens the mount to others, which only root may do everywhere.
        own = ["--no-allow-other"] if os.geteuid() else []
        return ["bindfs", "-f", *own, self.work / "lower", mountpoint]


def overlay_options(work: Path) -> str:
    """Three directories of *work* as both overlays want them named."""
    return ",".join(f"{name}={work / name}" for name in OVERLAY_DIRECTORIES)


OVERLAY_DIRECTORIES = ("lowerdir", "upperdir", "workdir")


class FuseOverlayfs(FuseServer):
    """fuse-overlayfs over an empty lower directory: all work is on new files. In C."""

    name = program = "fuse-overlayfs"
    directories = OVERLAY_DIRECTORIES

    def argv(self, mountpoint: Path) -> Sequence[str | Path]:
        return ["fuse-overlayfs", "-f", "-o", overlay_options(self.work), mountpoint]


class KernelOverlay(Target):
    """The kernel's overlayfs over an empty lower directory: no daemon at all."""

    name = "overlay"

    @classmethod
    def obstacle(cls) -> str | None:
        if os.geteuid():
            return "mounting overlayfs needs root"
        if "overlay" not in Path("/proc/filesystems").read_text().split():
            return "this kernel has no overlayfs"
        return None

    def setup(self) -> Place:
        for name in (*OVERLAY_DIRECTORIES, "mount"):
            (self.work / name).mkdir()
        mountpoint = self.work / "mount"
        argv: list[str | Path] = [
            "mount",
            "-t",
            "overlay",
            "overlay",
            "-o",
            overlay_options(self.work),
            mountpoint,
        ]
        run_tool(argv, env=self.env)
        return Place(mountpoint)

    def teardown(self) -> None:
        detach(self.work / "mount")


class PypiCowfs(FuseServer):
    """The project called cowfs on PyPI: versions of files, with pyfuse3 as well. In Python."""

    name = "pypi-cowfs"
    program = "cowfs"
    directories = ("storage",)

    @classmethod
    def obstacle(cls) -> str | None:
        return pypi_peer.obstacle()

    def argv(self, mountpoint: Path) -> Sequence[str | Path]:
        return [*pypi_peer.command(), "mount", self.work / "storage", mountpoint]


def detach(mountpoint: Path) -> None:
    """Unmount; lazily, if it stays busy."""

    def gone() -> bool:
        return not mounts_below(mountpoint) or unmount(mountpoint)

    if not poll(gone, seconds=MOUNT_SECONDS, interval=0.1):
        unmount(mountpoint, lazy=True)


TARGETS: tuple[type[Target], ...] = (
    Native,
    CowfsTarget,
    KernelOverlay,
    Bindfs,
    FuseOverlayfs,
    PypiCowfs,
)
