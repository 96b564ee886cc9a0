"""A full disk and a store with holes: its free pages need room of the disk again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.limits.disks import MIB, fill, free_bytes
from tests.limits.test_full import KEPT, can_write, durable, problems
from tests.mount.calls import eventually as until
from tests.support.mounting import Mounted, mounted

pytestmark = pytest.mark.usefixtures("needs_fuse")


def with_holes(mount: Mounted, size: int) -> None:
    """A store that has so many bytes of holes."""
    top = mount.mountpoint
    durable(top / "kept", KEPT)
    durable(top / "passing", os.urandom(size))
    gone = mount.checkpoint("passing")
    (top / "passing").unlink()
    mount.checkpoint("kept")
    mount.call("forget", checkpoints=[gone])
    mount.call("gc")
    durable(top / "after", b"")
    done = mount.call("compact")
    assert done["complete"]
    assert done["before"] - done["after"] > size - MIB


def test_the_room_is_the_disks_again(base: Path, disk: Path) -> None:
    with mounted(base, disk / "store") as mount:
        before = free_bytes(disk)
        with_holes(mount, 12 * MIB)
        assert free_bytes(disk) > before - 2 * MIB
        fill(disk)
        assert mount.call("status")["room_bytes"] < MIB
        assert not can_write(mount.mountpoint / "kept", os.urandom(8 * MIB))


def test_holes_on_a_disk_that_others_filled(base: Path, disk: Path) -> None:
    """As on any full disk: nothing new, but deleting, checkpoints and restores."""
    with mounted(base, disk / "store") as mount:
        top = mount.mountpoint
        with_holes(mount, 12 * MIB)
        first = mount.checkpoint("first")
        filler = fill(disk)
        assert not can_write(top / "after", os.urandom(8 * MIB))
        assert "full" in problems(mount)
        assert (top / "kept").read_bytes() == KEPT
        os.unlink(top / "after")
        os.unlink(top / "kept")
        mount.checkpoint("on a full disk")
        mount.restore(first)
        assert (top / "kept").read_bytes() == KEPT
        os.unlink(filler)
        until(lambda: can_write(top / "again", os.urandom(8 * MIB)))
        until(lambda: problems(mount) == set())
    with mounted(base, disk / "store") as mount:
        assert (mount.mountpoint / "kept").read_bytes() == KEPT


def test_what_became_free_since_can_be_used(base: Path, disk: Path) -> None:
    """LMDB would take the older free pages first, which are holes that the disk has no room for:
    what has room is given for them."""
    with mounted(base, disk / "store") as mount:
        top = mount.mountpoint
        with_holes(mount, 12 * MIB)
        durable(top / "second", os.urandom(8 * MIB))
        fill(disk)
        os.unlink(top / "second")
        for _ in range(4):
            content = os.urandom(4 * MIB)
            until(lambda: can_write(top / "third", content))  # noqa: B023
            assert (top / "third").read_bytes() == content
            mount.call("flush")
            os.unlink(top / "third")
        mount.checkpoint("works")
