"""An ext4 file system in a file, on a loop device, whose power can be cut. Needs root."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.mount.calls import eventually, umount

_TOOLS = ("losetup", "mkfs.ext4", "e2fsck", "mount")
_IOC_SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32) of fs/ext4/ext4.h, with FLAGS_NOLOGFLUSH: nothing that
is in memory, the journal's last part included, reaches the disk any more."""
_NO_LOG_FLUSH = 2
_MENDED = 1


def disks_missing() -> str:
    """Why there can be no such file system here, "" when there can."""
    if os.geteuid() != 0:
        return "a loop device needs root"
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    found = subprocess.run(["losetup", "-f"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return f"there is no loop device: {found.stderr.strip()}"
    return ""


class Disk:
    """A mounted ext4 at `at`."""

    def __init__(self, device: str, at: Path, options: str = "") -> None:
        self.device = device
        self.at = at
        self._options = ["-o", options] if options else []

    def mount(self) -> None:
        run_tool("mount", "-t", "ext4", *self._options, self.device, str(self.at))

    def unmount(self) -> None:
        umount(self.at)

    def cut(self) -> None:
        """The power goes: from now on every write fails, and what was not synced is gone."""
        fd = os.open(self.at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def boot(self) -> None:
        """After a cut: replay the journal, check, and mount again. Raises AssertionError."""
        self.unmount()
        check = run_tool("e2fsck", "-fp", self.device, fine=_MENDED)
        assert check.returncode in (0, _MENDED), check.stdout
        self.mount()


def run_tool(*words: str, fine: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, fine):
        raise AssertionError(f"{words[0]} failed: {done.stdout}{done.stderr}")
    return done


def make_ext4(image: Path) -> None:
    """Make a file system in a file that is there, as large as the file."""
    run_tool("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,nodiscard", str(image))


@contextlib.contextmanager
def attached(image: Path, device: str = "") -> Iterator[str]:
    """A loop device with a file behind it, a free one or the one that is named. A device that
    another one left is never taken over: see losetup(8), and that detaching is finished later."""
    if device:
        run_tool("losetup", device, str(image))
    else:
        device = run_tool("losetup", "-f", "--show", str(image)).stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "-d", device], capture_output=True, check=False)


@contextlib.contextmanager
def disk(place: Path, megabytes: int = 256) -> Iterator[Disk]:
    """A new ext4, mounted while the block runs."""
    image, at = place / "image", place / "disk"
    at.mkdir()
    with open(image, "wb") as file:
        file.truncate(megabytes << 20)
    make_ext4(image)
    with attached(image) as device:
        found = Disk(device, at)
        found.mount()
        try:
            yield found
        finally:
            eventually(lambda: _unmounted(found))


def _unmounted(found: Disk) -> bool:
    """Whether it could be unmounted; a process that is about to end may still hold it."""
    try:
        found.unmount()
    except OSError:
        return not os.path.ismount(found.at)
    return True
