"""A fresh ext4 in a file, for machines whose own filesystem is no fair ground.

An ext4 without a journal does not give an inode away again for five minutes after its file was
deleted, and looks at every one of them for each file that is created. So after an ``rm -rf``
creating files takes ten times as long there, for a plain directory and for every filesystem that
stores files as files: figures depend on what was deleted before, and flatter those that do not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.system import BenchError, Env, filesystem_of, remove_work, run_tool

GIB = 1 << 30
DEFAULT_GIB = 16
BYTES_PER_INODE = 8192
TOOLS = ("mkfs.ext4", "losetup", "mount")


def has_no_journal(directory: Path) -> bool:
    """Whether *directory* is on an ext4 without a journal."""
    kind, device = filesystem_of(directory)
    task = Path("/sys/fs/ext4") / Path(device).name / "journal_task"
    return kind == "ext4" and task.exists() and not task.read_text().strip().isdecimal()


def obstacle() -> str | None:
    """Why an image cannot be mounted here, or None."""
    if os.geteuid():
        return "mounting an image needs root"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    return f"{missing[0]} is not installed" if missing else None


@contextmanager
def mounted(directory: Path, gib: int, env: Env) -> Iterator[Path]:
    """Make an image of *gib* GiB in *directory*, mount it, and yield a directory in it.

    Raises :class:`BenchError` where that is not possible.
    """
    if why := obstacle():
        raise BenchError(why)
    if shutil.disk_usage(directory).free < (gib + 1) * GIB:
        raise BenchError(f"{directory} has no room for an image of {gib} GiB (--image)")
    image, mountpoint = directory / "image", directory / "volume"
    mountpoint.mkdir()
    # Written, not only allocated: else the filesystem below would record each first write.
    run_tool(
        ["dd", "if=/dev/zero", f"of={image}", "bs=4M", f"count={gib << 8}", "oflag=direct"], env=env
    )
    options = ["-E", "lazy_itable_init=0,lazy_journal_init=0", "-i", str(BYTES_PER_INODE)]
    run_tool(["mkfs.ext4", "-q", "-F", *options, image], env=env)
    # Direct: else every page would be cached twice.
    attach: list[str | Path] = ["losetup", "--find", "--show", "--direct-io=on", image]
    device = run_tool(attach, env=env).decode().strip()
    try:
        run_tool(["mount", device, mountpoint], env=env)
        try:
            inside = mountpoint / "work"
            inside.mkdir()
            yield inside
        finally:
            remove_work(mountpoint, keep=True)
    finally:
        run_tool(["losetup", "--detach", device], env=env)
