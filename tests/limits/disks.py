"""Small disks of our own: an ext4 in a file, mounted by a loop device."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

MIB = 1 << 20


def need_loop_mounts() -> None:
    """Skips the test where no disk can be made."""
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    if not os.path.exists("/dev/loop-control"):
        pytest.skip("there are no loop devices")


@contextlib.contextmanager
def small_disk(place: Path, size: int, *, inodes: int = 1024) -> Iterator[Path]:
    """A file system of `size` bytes in a file in `place`; yields where it is mounted.

    No block is reserved for root, so that root meets the same limits as everybody.
    """
    need_loop_mounts()
    image, at = place / "disk.img", place / "disk"
    at.mkdir()
    with open(image, "wb") as file:
        file.truncate(size)
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-N", str(inodes), str(image))
    try:
        _run("mount", "-o", "loop", str(image), str(at))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device can be mounted: {error.stderr.decode().strip()}")
    try:
        yield at
    finally:
        if os.path.ismount(at):
            _run("umount", "-l", str(at))


def fill(directory: Path, leave: int = 0) -> Path:
    """Take all the room of a disk but `leave` bytes; returns the file that does. Delete it to make
    room."""
    filler = directory / "filler"
    fd = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while (free := free_bytes(directory) - leave) > 0:
            step = free
            while step >= 4096:
                try:
                    os.posix_fallocate(fd, os.fstat(fd).st_size, step)
                    break
                except OSError:
                    step //= 2
            else:
                return filler
    finally:
        os.close(fd)
    return filler


def free_bytes(directory: Path) -> int:
    stats = os.statvfs(directory)
    return stats.f_bavail * stats.f_frsize


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@contextlib.contextmanager
def attached(image: Path, at: Path, device: str = "") -> Iterator[str]:
    """Mount the image of a file system at `at` by a loop device, this one if it is free; yields its
    path. Afterwards the device is free again."""
    if not device or not _attach(device, image):
        found = subprocess.run(
            ["losetup", "-f", "--show", str(image)], capture_output=True, timeout=60, check=False
        )
        if found.returncode:
            pytest.skip(f"no loop device: {found.stderr.decode().strip()}")
        device = found.stdout.decode().strip()
    try:
        _run("mount", device, str(at))
        try:
            yield device
        finally:
            _run("umount", str(at))
    finally:
        _run("losetup", "-d", device)


def _attach(device: str, image: Path) -> bool:
    done = subprocess.run(
        ["losetup", device, str(image)], capture_output=True, timeout=60, check=False
    )
    return done.returncode == 0
