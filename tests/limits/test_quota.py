"""`cowfs mount --quota`: how much the store may hold."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cowfs.volume.sparse import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from tests.cli.command import Cowfs
from tests.limits.disks import MIB
from tests.limits.test_full import KEPT, can_write, durable, write_until_full
from tests.mount.calls import errno_of, fallocate, opened
from tests.mount.calls import eventually as until

QUOTA = 16 * MIB


@pytest.fixture
def workspace(cowfs: Cowfs) -> Path:
    top = cowfs.top / "project"
    top.mkdir()
    cowfs.in_process = True
    cowfs.ok("mount", "project", "--quota", "16M", "--store", "store")
    return top


def test_writers_meet_it(cowfs: Cowfs, workspace: Path) -> None:
    stats = os.statvfs(workspace)
    assert stats.f_blocks * stats.f_frsize == QUOTA
    assert 0 < stats.f_bavail * stats.f_frsize < QUOTA
    durable(workspace / "kept", KEPT)
    assert write_until_full(workspace / "big", 64 * MIB).errno == errno.ENOSPC
    stats = os.statvfs(workspace)
    assert stats.f_bavail * stats.f_frsize < 2 * MIB  # what one request may write
    assert (workspace / "kept").read_bytes() == KEPT
    status = cowfs.ok("status", cwd=workspace)
    assert status["quota_bytes"] == QUOTA
    assert QUOTA - 2 * MIB < status["used_bytes"] <= QUOTA
    assert "of its quota of 16.0 MiB" in cowfs.says("status", cwd=workspace)
    cowfs.ok("checkpoint", "-m", "at the limit", cwd=workspace)
    os.unlink(workspace / "kept")
    cowfs.ok("restore", "@~1", cwd=workspace)
    assert (workspace / "kept").read_bytes() == KEPT
    cowfs.ok("unmount", "project")
    assert (workspace / "kept").read_bytes() == KEPT
    cowfs.ok("verify", cwd=workspace)


def test_allocating_ahead_meets_it(cowfs: Cowfs, workspace: Path) -> None:
    """fallocate(2): ENOSPC when what is missing would not fit. Holes need no room."""
    with opened(workspace / "f", os.O_CREAT | os.O_RDWR) as fd:
        os.write(fd, os.urandom(MIB))
        os.fsync(fd)
        fallocate(fd, 0, 0, 8 * MIB)
        for mode in (0, KEEP_SIZE, ZERO_RANGE):
            assert errno_of(fallocate, fd, mode, 0, 64 * MIB) == "ENOSPC"
        assert os.fstat(fd).st_size == 8 * MIB
        assert write_until_full(workspace / "big", 64 * MIB).errno == errno.ENOSPC
        assert errno_of(fallocate, fd, 0, 0, 16 * MIB) == "ENOSPC"
        fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 0, MIB - 1)
        os.fsync(fd)
        assert os.pread(fd, MIB, 0)[:-1] == bytes(MIB - 1)


def test_deleting_makes_room(cowfs: Cowfs, workspace: Path) -> None:
    assert write_until_full(workspace / "big", 64 * MIB).errno == errno.ENOSPC
    os.unlink(workspace / "big")
    until(lambda: can_write(workspace / "next", os.urandom(8 * MIB)))
    assert cowfs.ok("status", cwd=workspace)["health"]["state"] == "ok"


def test_it_is_remembered_and_can_be_changed(cowfs: Cowfs, workspace: Path) -> None:
    def quota() -> int:
        return int(cowfs.ok("status", cwd=workspace)["quota_bytes"])

    cowfs.ok("unmount", "project")
    assert quota() == QUOTA
    cowfs.ok("mount", "project")
    assert quota() == QUOTA
    assert not can_write(workspace / "big", os.urandom(QUOTA))
    cowfs.ok("unmount", "project", "--no-apply")
    cowfs.ok("mount", "project", "--quota", "0.5G")
    assert quota() == 1 << 29
    assert can_write(workspace / "big", os.urandom(QUOTA))
    cowfs.ok("unmount", "project", "--no-apply")
    cowfs.ok("mount", "project", "--quota", "none")
    assert quota() == 0
    real, shown = os.statvfs(cowfs.top / "store"), os.statvfs(workspace)
    assert shown.f_blocks == real.f_blocks


@pytest.mark.parametrize("size", ["", "much", "-1", "0", "5X", "1e30T"])
def test_what_is_no_size(cowfs: Cowfs, size: str) -> None:
    (cowfs.top / "project").mkdir()
    error = cowfs.fails("mount", "project", "--quota", size)
    assert error["code"] == "COWFS_USAGE"
    assert cowfs.mounts() == []


def test_sealing_stops_before_it(cowfs: Cowfs) -> None:
    """It does not take the last room from those who write, and what it has done is not lost."""
    top = cowfs.top / "project"
    top.mkdir()
    (top / "big").write_bytes(os.urandom(QUOTA))
    cowfs.in_process = True
    cowfs.ok("mount", "project", "--quota", "8M", "--store", "store")
    for _ in range(2):
        result = cowfs.run("seal", "--json", cwd=top)
        assert result.document["error"]["code"] == "COWFS_STORE_FULL"
    status = cowfs.ok("status", cwd=top)
    assert MIB < status["used_bytes"] <= 8 * MIB
    assert status["uncommitted_bytes"] == 0
    cowfs.ok("checkpoint", cwd=top)
    cowfs.ok("unmount", "project", "--no-apply")
    cowfs.ok("mount", "project", "--quota", "none")
    cowfs.ok("seal", cwd=top)
    assert cowfs.ok("status", cwd=top)["sealing"]["unsealed"] == 0
