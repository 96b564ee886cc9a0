"""A store on a disk that is read-only, breaks, or is unmounted under the daemon."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
from pathlib import Path

import pytest

from cowfs.client.rpc import ConnectionFailedError, RpcError
from tests.cli.command import Cowfs
from tests.limits.disks import MIB, fill
from tests.limits.test_full import KEPT, durable
from tests.mount.calls import eventually as until
from tests.support.mounting import MountRefusedError, mounted

_SHUTDOWN = 0x8004587D
"""FS_IOC_SHUTDOWN of Linux: from now on the file system gives errors for all that is written."""
_NO_LOG_FLUSH = 2

pytestmark = pytest.mark.usefixtures("needs_fuse")


def break_down(disk: Path) -> None:
    """As a disk does that is pulled out."""
    fd = os.open(disk, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    finally:
        os.close(fd)


def remount(disk: Path, option: str) -> None:
    subprocess.run(
        ["mount", "-o", f"remount,{option}", str(disk)],
        check=True,
        capture_output=True,
        timeout=30,
    )


def test_a_disk_that_breaks(base: Path, disk: Path) -> None:
    with mounted(base, disk / "store", check=False) as mount:
        top = mount.mountpoint
        durable(top / "kept", KEPT)
        break_down(disk)
        with open(top / "f", "wb") as file:
            file.write(b"lost")
            file.flush()
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                os.fsync(file.fileno())
        assert (top / "kept").read_bytes() == KEPT
        status = mount.call("status")
        assert status["health"]["state"] == "failing"
        assert "store" in {problem["kind"] for problem in status["health"]["problems"]}
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            (top / "new").touch()
        for method in ("checkpoint", "apply", "unmount"):
            with pytest.raises(RpcError) as caught:
                mount.call(method)
            assert caught.value.error["code"] == "COWFS_STORE_UNWRITABLE"
        answer = mount.call("unmount", force=True)
        assert "cannot be written" in answer["unstored"]
        assert mount.process.wait(30) == 36
        assert not mount.is_mounted()


def test_a_broken_disk_and_a_signal(base: Path, disk: Path) -> None:
    with mounted(base, disk / "store", check=False) as mount:
        break_down(disk)
        (mount.mountpoint / "f").touch()
        until(lambda: mount.call("status")["health"]["state"] == "failing")
        mount.process.terminate()
        assert mount.process.wait(30) == 36
        assert not mount.is_mounted()


def test_a_disk_that_is_unmounted_lazily(base: Path, disk: Path, tmp_path: Path) -> None:
    """What is open goes on; the socket cannot be found any more. Nothing is lost."""
    with mounted(base, disk / "store", check=False) as mount:
        top = mount.mountpoint
        durable(top / "f", KEPT)
        subprocess.run(["umount", "-l", str(disk)], check=True, timeout=30)
        durable(top / "g", KEPT)
        assert (top / "f").read_bytes() == KEPT
        with pytest.raises(ConnectionFailedError):
            mount.client()
        mount.process.terminate()
        assert mount.process.wait(30) == 0
        assert not mount.is_mounted()
    subprocess.run(
        ["mount", "-o", "loop", str(tmp_path / "disk.img"), str(disk)], check=True, timeout=30
    )
    with mounted(base, disk / "store") as mount:
        assert (mount.mountpoint / "g").read_bytes() == KEPT


def test_a_disk_that_becomes_read_only(base: Path, disk: Path) -> None:
    """A new daemon is refused, saying why; reading commands work; nothing is written."""
    cowfs = Cowfs(disk)
    cowfs.in_process = True
    with mounted(base, disk / "store") as mount:
        durable(mount.mountpoint / "kept", KEPT)
        mount.checkpoint("kept", label="kept")
    (disk / "project").mkdir()
    cowfs.ok("mount", "project", "--store", "other")
    durable(disk / "project/f", KEPT)
    cowfs.ok("checkpoint", "--label", "there", cwd=disk / "project")
    cowfs.ok("unmount", "project")
    remount(disk, "ro")
    try:
        with pytest.raises(MountRefusedError) as caught, mounted(base, disk / "store", check=False):
            pass
        assert caught.value.error["code"] == "COWFS_PERMISSION"
        assert "Read-only file system" in caught.value.error["message"]
        assert "Read-only file system" in cowfs.fails("mount", "project")["message"]
        labels = [row["label"] for row in cowfs.ok("log", cwd=disk / "project")["checkpoints"]]
        assert "there" in labels
        assert cowfs.run("show", "there:f", cwd=disk / "project").raw == KEPT
        assert cowfs.ok("status", cwd=disk / "project")["mounted"] is False
        cowfs.ok("verify", cwd=disk / "project")
        error = cowfs.fails("restore", "there", cwd=disk / "project")
        assert error["code"] == "COWFS_PERMISSION"
    finally:
        remount(disk, "rw")


def test_a_new_store_on_a_full_disk(base: Path, disk: Path) -> None:
    """Refused for lack of room, and nothing is left that is taken for a store."""
    filler = fill(disk)
    with pytest.raises(MountRefusedError) as caught, mounted(base, disk / "store", check=False):
        pass
    assert caught.value.error["code"] == "COWFS_STORE_FULL"
    assert os.listdir(base) == []
    filler.unlink()
    with mounted(base, disk / "store") as mount:
        durable(mount.mountpoint / "f", b"x" * MIB)
