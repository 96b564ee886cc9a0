"""A full disk (contract 7): writers get ENOSPC, what is there stays, deleting makes room, nothing
hangs, and everything goes on when there is room again. docs/durability.md, "A full disk"."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cowfs.client.rpc import RpcError
from tests.limits.disks import MIB, fill, free_bytes, small_disk
from tests.mount.calls import eventually as until
from tests.support.mounting import Mounted, mounted
from tests.verify.test_mounted import Checker

KEPT = b"K" * 100_000

pytestmark = pytest.mark.usefixtures("needs_fuse")


def write_until_full(path: Path, most: int = 128 * MIB) -> OSError:
    """Write what cannot be compressed until an error; it comes from write, fsync or close."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    found: OSError | None = None
    try:
        for _ in range(most // MIB):
            os.write(fd, os.urandom(MIB))
        os.fsync(fd)
    except OSError as error:
        found = error
    try:
        os.close(fd)
    except OSError as error:
        found = found or error
    assert found is not None, "everything fitted"
    return found


def durable(path: Path, content: bytes) -> None:
    """Write a file; it is on stable storage when this returns."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def can_write(path: Path, content: bytes) -> bool:
    try:
        durable(path, content)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def may_not_grow(mount: Mounted, by: int = 0) -> None:
    """From now on the data file of the store cannot become longer. Everything is committed."""
    mount.checkpoint()
    size = (mount.store / "data.mdb").stat().st_size + by
    resource.prlimit(mount.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def problems(mount: Mounted) -> set[str]:
    return {problem["kind"] for problem in mount.call("status")["health"]["problems"]}


def differences(mount: Mounted) -> list[str]:
    """What `verify` of the mount finds."""
    with mount.client() as client:
        report = Checker(mount, client).run()
    return [problem.check for problem in report.problems]


def failure(mount: Mounted, method: str, **params: Any) -> str:
    """The code of the error of a call, "" when it succeeds."""
    try:
        mount.call(method, **params)
    except RpcError as error:
        return str(error.error["code"])
    return ""


def test_what_the_open_epoch_deletes_makes_room(base: Path, disk: Path) -> None:
    """Nobody frees anything on the disk itself."""
    with mounted(base, disk / "store") as mount:
        top = mount.mountpoint
        durable(top / "kept", KEPT)
        for _ in range(2):
            assert write_until_full(top / "big").errno == errno.ENOSPC
            assert (top / "kept").read_bytes() == KEPT
            assert sorted(os.listdir(top)) == ["big", "kept"]
            (top / "big").unlink()
            until(lambda: can_write(top / "again", os.urandom(10 * MIB)))
            (top / "again").unlink()
        assert problems(mount) == set()
        assert free_bytes(disk) < 10 * MIB  # so it was the store's own room
    assert sorted(os.listdir(base)) == []


def test_what_did_not_fit_is_not_shown(base: Path, disk: Path) -> None:
    """The kernel takes a page that was refused for written. Whoever reads it gets zeros, as after
    the next mount, and `verify` has nothing to report."""
    with mounted(base, disk / "store") as mount:
        big = mount.mountpoint / "big"
        assert write_until_full(big).errno == errno.ENOSPC
        with open(big, "rb") as held:  # so that the kernel does not just forget it
            until(lambda: differences(mount) == [])
            shown = held.read()
        blocks = [shown[at : at + 65536] for at in range(0, len(shown), 65536)]
        assert len(shown) == 128 * MIB
        assert 8 * MIB < sum(len(block) for block in blocks if any(block)) < 32 * MIB
        mount.unmount()
    with mounted(base, disk / "store") as mount:
        assert (mount.mountpoint / "big").read_bytes() == shown


def test_truncating_makes_room(base: Path, disk: Path) -> None:
    with mounted(base, disk / "store") as mount:
        top = mount.mountpoint
        assert write_until_full(top / "big").errno == errno.ENOSPC
        os.truncate(top / "big", 2 * MIB)
        until(lambda: can_write(top / "more", os.urandom(8 * MIB)))
        os.truncate(top / "more", 0)
        os.truncate(top / "big", 0)
        until(lambda: can_write(top / "most", os.urandom(14 * MIB)))


def test_overwriting_does_not_need_the_room_twice(base: Path, disk: Path) -> None:
    """40 MiB of writes to a file of 4 MiB, in a store of less than that."""
    with mounted(base, disk / "store") as mount:
        fd = os.open(mount.mountpoint / "f", os.O_RDWR | os.O_CREAT)
        try:
            data = b""
            for _ in range(10):
                data = os.urandom(4 * MIB)
                os.pwrite(fd, data, 0)
                os.fsync(fd)
            assert os.pread(fd, 4 * MIB, 0) == data
        finally:
            os.close(fd)
        assert mount.call("status")["store_bytes"] < 24 * MIB


def test_nothing_new_but_everything_else_works(base: Path, disk: Path) -> None:
    """The disk is filled by somebody else while the workspace is mounted."""
    with mounted(base, disk / "store") as mount:
        top = mount.mountpoint
        durable(top / "kept", KEPT)
        durable(top / "gone", KEPT)
        first = mount.checkpoint("first")
        fill(disk)
        assert write_until_full(top / "big").errno == errno.ENOSPC
        assert "full" in problems(mount)
        attempts: list[Callable[[], object]] = [
            lambda: os.mkdir(top / "d"),
            lambda: os.symlink("x", top / "l"),
            lambda: os.link(top / "kept", top / "other"),
            lambda: os.setxattr(top / "kept", "user.a", b"1"),
            lambda: os.close(os.open(top / "new", os.O_CREAT)),
            lambda: os.truncate(top / "kept", 1 << 30),
        ]
        for make in attempts:
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                make()
        stats = os.statvfs(top)
        assert (stats.f_bavail, stats.f_bfree) == (0, 0)
        os.unlink(top / "gone")
        os.unlink(top / "big")
        os.rename(top / "kept", top / "moved")
        os.chmod(top / "moved", 0o600)
        second = mount.checkpoint("on a full disk")
        assert sorted(os.listdir(top)) == ["moved"]
        mount.restore(first)
        assert sorted(os.listdir(top)) == ["gone", "kept"]
        assert (top / "gone").read_bytes() == KEPT
        mount.call("undo")
        assert (top / "moved").read_bytes() == KEPT
        mount.restore(second)
        answer = mount.unmount()
        assert answer["unstored"] == ""
    with mounted(base, disk / "store") as mount:
        assert (mount.mountpoint / "moved").read_bytes() == KEPT


def test_it_goes_on_by_itself_when_there_is_room(base: Path, disk: Path) -> None:
    with mounted(base, disk / "store") as mount:
        top = mount.mountpoint
        filler = fill(disk)
        assert write_until_full(top / "big").errno == errno.ENOSPC
        os.unlink(filler)
        until(lambda: can_write(top / "small", KEPT))
        until(lambda: problems(mount) == set())
        assert (disk / "store/reserve").stat().st_blocks * 512 >= 4 * MIB
        assert (top / "small").read_bytes() == KEPT


def test_mounting_on_a_full_disk(base: Path, disk: Path) -> None:
    """Also after the daemon was killed: its files and the reserve are as they were left."""
    with mounted(base, disk / "store") as mount:
        durable(mount.mountpoint / "kept", KEPT)
        fill(disk)
        mount.kill()
    with mounted(base, disk / "store") as mount:
        top = mount.mountpoint
        assert (top / "kept").read_bytes() == KEPT
        until(lambda: problems(mount) == {"full"})
        assert not can_write(top / "more", os.urandom(8 * MIB))
        os.unlink(top / "kept")
        mount.checkpoint("works")


@pytest.mark.parametrize("inodes", [40])
def test_no_inode_left(base: Path, tmp_path: Path, inodes: int) -> None:
    """The daemon needs none while it runs; a mount that does not get one says so."""
    with small_disk(tmp_path, 32 * MIB, inodes=inodes) as disk:
        with mounted(base, disk / "store") as mount:
            for number in range(1000):
                try:
                    (disk / f"i{number}").touch()
                except OSError:
                    break
            assert os.statvfs(disk).f_favail == 0
            durable(mount.mountpoint / "f", KEPT)
            for number in range(100):
                (mount.mountpoint / f"many{number}").touch()
            mount.checkpoint()
        with (
            pytest.raises(Exception, match="No space left on device"),
            mounted(base, disk / "other"),
        ):
            pass
        (disk / "i0").unlink()
        with mounted(base, disk / "store") as mount:
            assert (mount.mountpoint / "f").read_bytes() == KEPT


def test_a_store_that_may_not_grow(
    base: Path, mounted: Callable[..., AbstractContextManager[Mounted]]
) -> None:
    """The commit itself fails, after the data was taken: a limit on file sizes (setrlimit(2)) that
    nobody can see in statfs. Needs no privilege."""
    with mounted(base, check=False) as mount:
        top = mount.mountpoint
        durable(top / "kept", KEPT)
        with open(top / "big", "wb") as file:
            may_not_grow(mount)
            file.write(os.urandom(4 * MIB))
            file.flush()
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                os.fsync(file.fileno())
        assert mount.call("status")["health"]["state"] == "failing"
        assert failure(mount, "checkpoint", message="cannot be stored") == "COWFS_STORE_FULL"
        assert failure(mount, "restore", checkpoint="@~1") == "COWFS_STORE_FULL"
        assert failure(mount, "unmount") == "COWFS_STORE_FULL"
        assert (top / "kept").read_bytes() == KEPT
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            os.mkdir(top / "d")
        resource.prlimit(
            mount.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
        until(lambda: mount.call("status")["health"]["state"] == "ok")
        assert (top / "big").stat().st_size == 4 * MIB
        durable(top / "after", KEPT)
        mount.unmount()
    with mounted(base) as mount:  # verifies the store
        assert (mount.mountpoint / "big").stat().st_size == 4 * MIB
        assert (mount.mountpoint / "after").read_bytes() == KEPT


def test_deleting_what_could_not_be_stored(
    base: Path, mounted: Callable[..., AbstractContextManager[Mounted]]
) -> None:
    with mounted(base, check=False) as mount:
        top = mount.mountpoint
        durable(top / "kept", KEPT)
        with open(top / "big", "wb") as file:
            may_not_grow(mount, 256 * 1024)
            file.write(os.urandom(8 * MIB))
            file.flush()
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                os.fsync(file.fileno())
        os.unlink(top / "big")
        until(lambda: mount.call("status")["health"]["state"] == "ok")
        mount.checkpoint()
        mount.unmount()
    with mounted(base) as mount:
        assert os.listdir(mount.mountpoint) == ["kept"]


def test_unmounting_by_force_gives_up_what_cannot_be_stored(
    base: Path, mounted: Callable[..., AbstractContextManager[Mounted]]
) -> None:
    with mounted(base, check=False) as mount:
        top = mount.mountpoint
        durable(top / "kept", KEPT)
        with open(top / "big", "wb") as file:
            may_not_grow(mount)
            file.write(os.urandom(4 * MIB))
            file.flush()
            answer = mount.call("unmount", force=True)
        assert "cannot grow" in answer["unstored"]
        assert mount.process.wait(30) == 44
        assert not mount.is_mounted()
    with mounted(base) as mount:
        assert (mount.mountpoint / "big").read_bytes() == b""
        assert (mount.mountpoint / "kept").read_bytes() == KEPT
