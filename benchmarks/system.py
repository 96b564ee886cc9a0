"""What the benchmarks need of the machine: processes, CPUs, kernel caches, mounts."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
TOOL_TIMEOUT = 900.0
"""Seconds after which a tool counts as hung; far above any workload, so never a measurement."""

BUSY = 0.5
"""The load average above which a machine is not idle enough to measure on."""

Env = dict[str, str]
"""The complete environment of a child process."""


class BenchError(Exception):
    """A benchmark cannot go on; the message is for the user."""


class ToolError(BenchError):
    """A command failed; *output* is what it wrote to standard output."""

    def __init__(self, message: str, output: bytes) -> None:
        super().__init__(message)
        self.output = output


def child_environment(home: Path) -> Env:
    """The environment of every tool under test.

    The user's git configuration, XDG directories, PYTHONPATH and locale would change what is
    measured, so only the search path is kept and HOME points to the empty directory *home*.
    """
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
    }


def run_tool(
    argv: Sequence[str | Path],
    *,
    env: Env,
    cwd: Path | None = None,
    accept: Iterable[int] = (0,),
    timeout: float = TOOL_TIMEOUT,
) -> bytes:
    """Run a command to its end and return what it wrote to standard output.

    Raises :class:`BenchError` when it cannot be started or takes longer than *timeout* seconds, and
    :class:`ToolError` with the end of its standard error when its status is not in *accept*.
    """
    name = Path(argv[0]).name
    try:
        done = subprocess.run(
            [os.fspath(part) for part in argv],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{name}: still running after {timeout:.0f} s") from error
    except OSError as error:
        raise BenchError(f"{name}: {error.strerror}") from error
    if done.returncode not in set(accept):
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-400:]
        raise ToolError(f"{name} ended with {done.returncode}: {said}", done.stdout)
    return done.stdout


def poll(ready: Callable[[], bool], *, seconds: float, interval: float = 0.01) -> bool:
    """Ask *ready* every *interval* seconds until it says yes (True) or *seconds* passed (False)."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval)
    return True


@contextmanager
def affinity(cpus: Iterable[int]) -> Iterator[None]:
    """Run the body on *cpus* only; children started in it, daemons too, inherit that."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cpus))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time that all threads of *pids* have used; a process that has ended counts as 0."""
    nanoseconds = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            # A thread may end between the listing and the read.
            with suppress(OSError):
                nanoseconds += int(task.read_text().split()[0])
    return nanoseconds / 1e9


def answers(pids: Iterable[int]) -> int:
    """How often *pids* have called write(2) or a sibling of it.

    A FUSE server answers each request with one, so the difference of two readings is the number of
    requests, more or less what it writes to files of its own.
    """
    count = 0
    for pid in pids:
        # Another user's process, or one that has just ended.
        with suppress(OSError):
            found = re.search(r"^syscw: (\d+)$", Path(f"/proc/{pid}/io").read_text(), re.MULTILINE)
            count += int(found[1]) if found else 0
    return count


@contextmanager
def watchdog(pids: Iterable[int], *, seconds: float) -> Iterator[None]:
    """Kill the daemons *pids* if the body takes longer than *seconds*.

    A system call on a FUSE filesystem whose daemon hangs never returns, and no signal ends it. When
    the daemon dies, the kernel ends the call with an error.
    """
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (BenchError, OSError) as error:
        if expired.is_set():
            raise BenchError(f"hung for {seconds:.0f} s; its daemon was killed") from error
        raise
    finally:
        timer.cancel()


def settle(root: Path, pids: Sequence[int], *, seconds: float = 60.0) -> bool:
    """Let one target finish what it does in the background, so that it does not disturb the next.

    Writes everything to disk, then waits until the daemons *pids* have used next to no CPU for
    50 ms. Returns False if they were still busy after *seconds*.
    """
    os.sync()
    # sync(2) sends no request to a FUSE daemon, so its own buffers need an fsync of a directory.
    with suppress(OSError):
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if not pids:
        return True
    used = cpu_seconds(pids)

    def quiet() -> bool:
        nonlocal used
        before, used = used, cpu_seconds(pids)
        return used - before < 0.001

    return poll(quiet, seconds=seconds, interval=0.05)


def allocated(path: Path) -> int:
    """Bytes of disk that a file, or everything in a directory, takes; hard links count once."""
    seen = set()
    total = 0
    pending = [path]
    while pending:
        current = pending.pop()
        found = current.lstat()
        if (found.st_dev, found.st_ino) not in seen:
            seen.add((found.st_dev, found.st_ino))
            total += found.st_blocks * 512
        if current.is_dir() and not current.is_symlink():
            pending += current.iterdir()
    return total


def cold_cache_obstacle() -> str | None:
    """Why the kernel's caches cannot be dropped here, or None if they can."""
    if os.access(DROP_CACHES, os.W_OK):
        return None
    return f"dropping caches needs to write {DROP_CACHES} (run as root)"


def drop_caches() -> None:
    """Drop the kernel's clean pages, names and inodes. What a daemon holds in its memory stays."""
    os.sync()
    DROP_CACHES.write_text("3\n")


def mounts_below(directory: Path) -> list[Path]:
    """Mount points at or below *directory*, the deepest first."""
    top = os.path.realpath(directory)
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split(" ")[4])
        if point == top or point.startswith(top + "/"):
            found.append(Path(point))
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def unmount(mountpoint: Path, *, lazy: bool = False) -> bool:
    """Unmount any filesystem as root, a FUSE one as anybody; returns whether that succeeded."""
    if os.geteuid() == 0:
        argv = ["umount", "-l"] if lazy else ["umount"]
    else:
        fusermount = shutil.which("fusermount3") or shutil.which("fusermount") or "fusermount3"
        argv = [fusermount, "-uz" if lazy else "-u"]
    done = subprocess.run([*argv, str(mountpoint)], capture_output=True, check=False)
    return done.returncode == 0


def remove_work(directory: Path, *, keep: bool = False) -> None:
    """Unmount everything in a work directory, then remove it unless it is to be kept.

    Raises rather than deleting through a live mount.
    """
    for lazy in (False, True):
        for point in mounts_below(directory):
            unmount(point, lazy=lazy)
    left = mounts_below(directory)
    if left:
        raise BenchError(f"{left[0]} is still mounted; unmount it and remove {directory}")
    if not keep:
        shutil.rmtree(directory)


def filesystem_of(path: Path) -> tuple[str, str]:
    """Type and source of the filesystem that holds *path*, as mountinfo names them."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split(" ")[2] == wanted:
            kind, source = rest.split(" ")[:2]
            return kind, source
    return "unknown", "unknown"


def describe_machine(work: Path) -> dict[str, object]:
    """What a reader must know to compare two reports."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "kernel": platform.release(),
        "cpu": model[1] if model else platform.machine(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "filesystem": filesystem_of(work)[0],
        "load_average": os.getloadavg()[0],
        "root": os.geteuid() == 0,
    }


def machine_text(machine: dict[str, object]) -> str:
    """The machine in a line, and a warning when it had other things to do."""
    load = float(str(machine["load_average"]))
    text = (
        f"{machine['cpu']}, CPUs {machine['cpus']}, kernel {machine['kernel']}, "
        f"{machine['filesystem']}, Python {machine['python']}, load average {load:.2f} at the start"
    )
    if load > BUSY:
        text += "\nWARNING: the machine was busy; these figures are not worth comparing."
    return text
