"""What can keep a virtual machine from being made or run, each said with what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PACKAGES = ("qemu-system-x86", "qemu-utils", "mmdebstrap", "e2fsprogs", "cpio", "kmod")
"""Of Debian and Ubuntu: what making and running the machine needs."""
_TO_BUILD = ("mmdebstrap", "mkfs.ext4", "cpio", "modprobe", "chroot")
_TO_RUN = ("qemu-system-x86_64", "mkfs.ext4")
BUILD_BYTES, RUN_BYTES = 5 << 30, 2 << 30
"""Room for making the image, and for a run."""


class VmError(Exception):
    """Something is missing or failed. hint: what to do, "" when there is nothing to say."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def need_tools(build: bool) -> None:
    """Raises VmError when a program is not installed."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    wanted = (*_TO_RUN, *(_TO_BUILD if build else ()))
    missing = [tool for tool in wanted if shutil.which(tool, path=path) is None]
    if missing:
        raise VmError(
            f"not installed: {', '.join(missing)}",
            f"scripts/vm --install, or as root: apt-get install {' '.join(PACKAGES)}",
        )


def need_root(what: str) -> None:
    """Raises VmError for an ordinary user."""
    if os.geteuid() != 0:
        raise VmError(
            f"{what} needs root",
            "run `scripts/vm --build` as root, with COWFS_VM_CACHE set to a directory "
            "that you can read; running the machine needs no root",
        )


def need_room(place: Path, size: int) -> None:
    """Raises VmError when the disk of `place` has less than `size` bytes left."""
    free = shutil.disk_usage(place).free
    if free < size:
        raise VmError(
            f"{place} has {free >> 20} MiB free, and {size >> 20} MiB are needed",
            "make room there; COWFS_VM_CACHE and TMPDIR choose other places",
        )


def install() -> None:
    """Install PACKAGES with apt-get. Raises VmError."""
    if shutil.which("apt-get") is None:
        raise VmError(
            "there is no apt-get here", f"install what Debian has as {' '.join(PACKAGES)}"
        )
    sudo = []
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise VmError("installing packages needs root, and there is no sudo")
        sudo = ["sudo"]
    apt = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    run([*apt, "update"], "no network, or a wrong line in /etc/apt?")
    wanted = ["install", "--no-install-recommends", *PACKAGES]
    run(
        [*apt, "-o", "DPkg::Lock::Timeout=300", *wanted], "no network, or a wrong line in /etc/apt?"
    )


def run(
    words: Sequence[str | Path],
    hint: str = "",
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a command to its end; what it printed. Raises VmError with its last lines."""
    done = subprocess.run(
        [str(word) for word in words],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise VmError(f"{words[0]} failed with {done.returncode}:\n{last}", hint)
    return done.stdout
