"""Modes, owners, times and extended attributes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.format.records import Counts
from cowfs.volume import attributes
from tests.support.volumes import START, Rig, errno_of


def test_a_mode_keeps_the_type(volume: Rig) -> None:
    for name, kind in ((b"f", stat.S_IFREG), (b"d", stat.S_IFDIR), (b"p", stat.S_IFIFO)):
        volume.create(name, mode=kind | 0o600)
        attributes.set_attributes(volume.view, volume.at(name), mode=0o177777)
        assert volume.at(name).mode == kind | 0o7777
    volume.reopen()
    assert volume.at(b"p").mode == stat.S_IFIFO | 0o7777


def test_owners_can_be_any_number(volume: Rig) -> None:
    volume.create(b"f")
    attributes.set_attributes(volume.view, volume.at(b"f"), uid=0xFFFF_FFFE, gid=0xFFFF_FFFE)
    volume.reopen()
    assert (volume.at(b"f").uid, volume.at(b"f").gid) == (0xFFFF_FFFE, 0xFFFF_FFFE)


@pytest.mark.parametrize("time", [0, 1, -1, -2_000_000_001, 1_700_000_000_123_456_789])
def test_times_are_kept_to_the_nanosecond(volume: Rig, time: int) -> None:
    volume.create(b"f")
    attributes.set_attributes(volume.view, volume.at(b"f"), atime=time, mtime=time - 1)
    volume.reopen()
    assert (volume.at(b"f").atime, volume.at(b"f").mtime) == (time, time - 1)


@pytest.mark.parametrize("year", [1600, 2300, 2446])
def test_times_that_no_record_holds_become_the_nearest(
    open_rig: Callable[[], Rig], base: Path, year: int
) -> None:
    """`touch -d 2300-01-01` must not keep the store from committing."""
    time = (year - 1970) * 365_250_000 * 86_400_000
    nearest = -(1 << 63) if year < 1970 else (1 << 63) - 1
    (base / "base").touch()
    os.utime(base / "base", ns=(time, time))
    rig = open_rig()
    rig.create(b"f")
    attributes.set_attributes(rig.view, rig.at(b"f"), atime=time, mtime=time, ctime=time)
    rig.volume.sync()
    rig.evict()
    inode = rig.at(b"f")
    assert (inode.atime, inode.mtime, inode.ctime) == (nearest, nearest, nearest)
    shown = os.stat(base / "base").st_mtime_ns  # the base has limits of its own
    assert rig.at(b"base").mtime == max(min(shown, (1 << 63) - 1), -(1 << 63))
    rig.reopen()
    assert rig.read(b"base") == b""
    assert rig.problems() == []


def test_what_changes_nothing_leaves_no_trace(volume: Rig) -> None:
    inode = volume.create(b"f", b"abc")
    volume.checkpoint()
    before = volume.record_counts()
    attributes.set_attributes(volume.view, inode)
    assert volume.record_counts() == before
    assert volume.view.counts() == Counts(0, 0, 0)


def test_the_kernel_may_set_ctime(volume: Rig) -> None:
    """The writeback cache sends its own."""
    inode = volume.create(b"f")
    attributes.set_attributes(volume.view, inode, mtime=5, ctime=6)
    assert (inode.mtime, inode.ctime) == (5, 6)
    attributes.set_attributes(volume.view, inode, mode=0o600)
    assert inode.ctime != 6


# -- extended attributes ------------------------------------------------------------------------


def test_extended_attributes_come_and_go(volume: Rig) -> None:
    volume.create(b"f")
    volume.mkdir(b"d")
    volume.setxattr(b"f", b"user.a", b"1")
    volume.setxattr(b"f", b"user.empty", b"")
    volume.setxattr(b"d", b"user.b", b"\0\xff" * 100)
    then = volume.checkpoint()
    volume.setxattr(b"f", b"user.a", b"2")
    attributes.remove_xattr(volume.view, volume.at(b"f"), b"user.empty")
    volume.setxattr(b"f", b"user.new", b"3")
    volume.reopen()
    assert volume.xattrs(b"f") == {b"user.a": b"2", b"user.new": b"3"}
    volume.restore(then)
    assert volume.xattrs(b"f") == {b"user.a": b"1", b"user.empty": b""}
    assert volume.xattrs(b"d") == {b"user.b": b"\0\xff" * 100}
    volume.undo()
    assert volume.xattrs(b"f") == {b"user.a": b"2", b"user.new": b"3"}


def test_limits_of_extended_attributes(volume: Rig) -> None:
    volume.create(b"f")
    longest, largest = b"user." + b"n" * 250, os.urandom(65536)
    volume.setxattr(b"f", longest, largest)
    assert errno_of(volume.setxattr, b"f", longest + b"n", b"") == errno.ERANGE
    assert errno_of(volume.setxattr, b"f", b"", b"") == errno.ERANGE
    assert errno_of(volume.setxattr, b"f", b"user.a", largest + b"x") == errno.E2BIG
    remove = attributes.remove_xattr
    assert errno_of(remove, volume.view, volume.at(b"f"), b"user.b") == errno.ENODATA
    volume.reopen()
    assert volume.xattrs(b"f") == {longest: largest}


def test_no_name_is_taken_for_one_that_starts_like_it(volume: Rig) -> None:
    volume.create(b"f")
    for name in (b"user.a", b"user.ab", b"user.a\xff"):
        volume.setxattr(b"f", name, name)
    volume.volume.sync()
    attributes.remove_xattr(volume.view, volume.at(b"f"), b"user.a")
    volume.reopen()
    assert volume.xattrs(b"f") == {b"user.ab": b"user.ab", b"user.a\xff": b"user.a\xff"}


def test_a_removed_attribute_of_a_base_file(open_rig: Callable[[], Rig], base: Path) -> None:
    (base / "f").touch()
    os.setxattr(base / "f", "user.a", b"1")
    rig = open_rig()
    attributes.remove_xattr(rig.view, rig.at(b"f"), b"user.a")
    rig.reopen()
    assert rig.xattrs(b"f") == {}
    rig.restore(START)
    assert rig.xattrs(b"f") == {b"user.a": b"1"}
