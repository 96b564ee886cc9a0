"""What makes checkpoints: a class for each tool, with a setup and a teardown.

Every tool is used as a coding agent or a person uses it: by commands, from outside. A restore keeps
the state before it as another checkpoint, as that of cowfs does.
"""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import pypi_peer
from benchmarks.cowfs_command import Cowfs
from benchmarks.system import BenchError, Env, allocated, poll, run_tool
from benchmarks.targets import Place, PypiCowfs, detach

Fill = Callable[[Path], None]
"""Puts files into an empty directory."""

IMPORT_SECONDS = 3600.0


class Tool(ABC):
    """One tool with one tree, in one empty directory *work* that holds everything."""

    name: str
    most_files: int | None = None
    """A tree with more would take too long to make."""
    exact = True
    """Whether a restore also removes what the checkpoint does not have."""

    def __init__(self, work: Path, env: Env) -> None:
        self.work = work
        self.env = env
        self.tree = work / "tree"
        """Where the project lies; edits are made here."""
        self.pids: tuple[int, ...] = ()
        """Daemons that must be idle before the clock starts."""

    @classmethod
    def obstacle(cls) -> str | None:
        """Why this tool cannot be measured on this machine, or None."""
        return None

    @abstractmethod
    def setup(self, fill: Fill) -> None:
        """Make the tree, and be ready for the first checkpoint.

        :meth:`teardown` follows also when this raises.
        """

    @abstractmethod
    def checkpoint(self) -> str:
        """Keep the present state; returns what :meth:`restore` takes."""

    @abstractmethod
    def restore(self, checkpoint: str) -> None:
        """Keep the present state and go to another."""

    @abstractmethod
    def stored(self) -> int:
        """Bytes of disk that all checkpoints take beside the tree itself."""

    def pack(self) -> int | None:
        """The same after the tool's own clean-up, or None if it has none."""
        return None

    def check(self) -> None:  # noqa: B027 - most are plain directories
        """Raise :class:`BenchError` if the tree is not where it was set up any more."""

    def trim(self) -> None:  # noqa: B027 - most have nothing to do
        """Give up all checkpoints, if they would fill the disk."""

    def teardown(self) -> None:  # noqa: B027 - most have nothing to do
        """Leave nothing mounted or running."""


class CowfsTool(Tool):
    """cowfs, mounted over the tree."""

    name = "cowfs"

    def __init__(self, work: Path, env: Env) -> None:
        super().__init__(work, env)
        self._stack = ExitStack()
        self._store = work / "store"

    def setup(self, fill: Fill) -> None:
        self.tree.mkdir()
        fill(self.tree)
        self._cowfs = Cowfs.installed(self.env)
        self._mount()

        def imported() -> bool:
            return bool(self._cowfs.call(self.tree, "status")["import"]["complete"])

        if not poll(imported, seconds=IMPORT_SECONDS, interval=0.2):
            raise BenchError("the import did not end")

    def check(self) -> None:
        Place(self.tree).check()

    def checkpoint(self) -> str:
        return str(self._cowfs.call(self.tree, "checkpoint")["checkpoint"]["id"])

    def restore(self, checkpoint: str) -> None:
        self._cowfs.call(self.tree, "restore", checkpoint)

    def _mount(self) -> None:
        mount = self._stack.enter_context(self._cowfs.mounted(self.tree, self._store))
        self.pids = (mount.pid,)

    def pack(self) -> int | None:
        """After ``cowfs compact``, unmounted: then it writes the file anew."""
        self._stack.close()
        self._cowfs.call(self.work, "compact", str(self.tree))
        packed = self.stored()
        self._mount()
        return packed

    def stored(self) -> int:
        # The reserve for a full disk is the same whatever is stored; docs/performance.md says so.
        return allocated(self._store) - allocated(self._store / "reserve")

    def teardown(self) -> None:
        self._stack.close()


class ShadowGit(Tool):
    """A git repository beside the tree, as coding agents keep one.

    It has no ignored files, times, owners or empty directories; and nothing is synced to the disk.
    """

    name = "shadow git"

    @classmethod
    def obstacle(cls) -> str | None:
        return None if shutil.which("git") else "git is not installed (apt-get install git)"

    def _git(self, *arguments: str) -> str:
        names = {"GIT_DIR": self.work / "shadow", "GIT_WORK_TREE": self.tree}
        who = {"NAME": "bench", "EMAIL": "bench@localhost"}
        env = self.env | {name: str(path) for name, path in names.items()}
        for role in ("AUTHOR", "COMMITTER"):
            env |= {f"GIT_{role}_{key}": value for key, value in who.items()}
        argv = ["git", "-c", "gc.auto=0", *arguments]
        return run_tool(argv, cwd=self.tree, env=env).decode().strip()

    def setup(self, fill: Fill) -> None:
        self._last = ""
        self.tree.mkdir()
        fill(self.tree)
        self._git("init", "-q")

    def checkpoint(self) -> str:
        self._git("add", "-A")
        tree = self._git("write-tree")
        parent = ["-p", self._last] if self._last else []
        self._last = self._git("commit-tree", tree, *parent, "-m", "checkpoint")
        return self._last

    def restore(self, checkpoint: str) -> None:
        self.checkpoint()
        self._git("read-tree", "--reset", "-u", checkpoint)

    def stored(self) -> int:
        return allocated(self.work / "shadow")

    def pack(self) -> int | None:
        """The pack file alone, after ``git gc``."""
        self._git("update-ref", "refs/heads/shadow", self._last)
        self._git("gc", "-q", "--prune=now")
        packs = (self.work / "shadow" / "objects" / "pack").glob("*.pack")
        return sum(path.stat().st_size for path in packs)


class Btrfs(Tool):
    """Snapshots of a subvolume, on a loop device."""

    name = "btrfs"

    IMAGE_GIB = 16

    @classmethod
    def obstacle(cls) -> str | None:
        if os.geteuid():
            return "mounting a loop device needs root"
        if not shutil.which("mkfs.btrfs"):
            return "mkfs.btrfs is not installed (apt-get install btrfs-progs)"
        if "btrfs" not in Path("/proc/filesystems").read_text().split():
            return "this kernel has no btrfs"
        if not Path("/dev/loop-control").exists():
            return "there are no loop devices"
        return None

    def check(self) -> None:
        Place(self._volume).check()

    def _btrfs(self, *arguments: str | Path) -> str:
        return run_tool(["btrfs", *arguments], env=self.env).decode()

    def setup(self, fill: Fill) -> None:
        image = self.work / "image"
        with image.open("wb") as file:
            file.truncate(self.IMAGE_GIB << 30)
        # Metadata once, as the filesystem below keeps its own once.
        run_tool(["mkfs.btrfs", "-q", "-m", "single", image], env=self.env)
        self._volume = self.work / "volume"
        self._volume.mkdir()
        run_tool(["mount", "-o", "loop", image, self._volume], env=self.env)
        self.tree = self._volume / "tree"
        self._btrfs("subvolume", "create", self.tree)
        self._empty = self._used()
        self._count = 0
        fill(self.tree)

    def checkpoint(self) -> str:
        self._count += 1
        target = self._volume / str(self._count)
        self._btrfs("subvolume", "snapshot", "-r", self.tree, target)
        return target.name

    def restore(self, checkpoint: str) -> None:
        self.checkpoint()
        self._btrfs("subvolume", "delete", self.tree)
        self._btrfs("subvolume", "snapshot", self._volume / checkpoint, self.tree)

    def _used(self) -> int:
        """Bytes in use for data and metadata."""
        self._btrfs("filesystem", "sync", self._volume)
        self._btrfs("subvolume", "sync", self._volume)
        total = 0
        for line in self._btrfs("filesystem", "df", "-b", self._volume).splitlines():
            if not line.startswith("GlobalReserve"):
                total += int(line.rpartition("used=")[2])
        return total

    def stored(self) -> int:
        return max(0, self._used() - self._empty - allocated(self.tree))

    def teardown(self) -> None:
        # The loop device goes with its mount.
        if (self.work / "volume").exists():
            detach(self.work / "volume")


class Restic(Tool):
    """A restic repository on the same disk. A restore rewrites files and removes none."""

    name = "restic"
    exact = False

    @classmethod
    def obstacle(cls) -> str | None:
        return (
            None if shutil.which("restic") else "restic is not installed (apt-get install restic)"
        )

    def _restic(self, *arguments: str | Path) -> bytes:
        env = self.env | {
            "RESTIC_REPOSITORY": str(self.work / "repository"),
            "RESTIC_PASSWORD": "bench",
            "RESTIC_CACHE_DIR": str(self.work / "cache"),
        }
        return run_tool(["restic", *arguments], cwd=self.tree, env=env)

    def setup(self, fill: Fill) -> None:
        self.tree.mkdir()
        fill(self.tree)
        self._restic("init", "--quiet")

    def checkpoint(self) -> str:
        said = self._restic("backup", "--json", ".")
        return str(json.loads(said.splitlines()[-1])["snapshot_id"])

    def restore(self, checkpoint: str) -> None:
        self.checkpoint()
        self._restic("restore", "--quiet", checkpoint, "--target", ".")

    def stored(self) -> int:
        return allocated(self.work / "repository")

    def pack(self) -> int | None:
        self._restic("prune", "--quiet")
        return self.stored()


class Copies(Tool):
    """A full copy of the tree with ``cp -a``."""

    name = "copies"

    def setup(self, fill: Fill) -> None:
        self._count = 0
        (self.work / "copies").mkdir()
        self.tree.mkdir()
        fill(self.tree)

    def checkpoint(self) -> str:
        self._count += 1
        target = self.work / "copies" / str(self._count)
        run_tool(["cp", "-a", self.tree, target], env=self.env)
        return target.name

    def restore(self, checkpoint: str) -> None:
        self.checkpoint()
        run_tool(["rm", "-rf", self.tree], env=self.env)
        run_tool(["cp", "-a", self.work / "copies" / checkpoint, self.tree], env=self.env)

    def stored(self) -> int:
        return allocated(self.work / "copies")

    def trim(self) -> None:
        for path in (self.work / "copies").iterdir():
            shutil.rmtree(path)


class PypiSnapshots(Tool):
    """Snapshots of the project called cowfs on PyPI, taken while it is mounted."""

    name = "pypi-cowfs"
    most_files = 10_000

    def __init__(self, work: Path, env: Env) -> None:
        super().__init__(work, env)
        self._target = PypiCowfs(work, env)
        self._stack = ExitStack()

    @classmethod
    def obstacle(cls) -> str | None:
        return PypiCowfs.obstacle()

    def setup(self, fill: Fill) -> None:
        self._count = 0
        self._place = place = self._target.setup()
        self._stack.callback(self._target.teardown)
        self.pids = place.pids
        self.tree = place.root / "tree"
        self.tree.mkdir()
        fill(self.tree)

    def check(self) -> None:
        self._place.check()

    def _snapshot(self, action: str, name: str) -> None:
        storage = str(self.work / "storage")
        argv = [*pypi_peer.command(), "snapshot", action, name, "--storage", storage]
        run_tool(argv, env=self.env)

    def checkpoint(self) -> str:
        self._count += 1
        name = f"state-{self._count}"
        self._snapshot("create", name)
        return name

    def restore(self, checkpoint: str) -> None:
        self.checkpoint()
        self._snapshot("restore", checkpoint)

    def stored(self) -> int:
        return allocated(self.work / "storage")

    def teardown(self) -> None:
        self._stack.close()


TOOLS: tuple[type[Tool], ...] = (CowfsTool, ShadowGit, Btrfs, Restic, Copies, PypiSnapshots)
