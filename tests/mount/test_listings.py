"""Listings of directories are kept by the kernel, and are right whatever happens to them.

The daemon's system calls that write (proc(5) "io") are its answers: what asks nothing adds none.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cowfs.mount import wire
from tests.conftest import MountFunction
from tests.mount.calls import errno_of, getdents, opened, write_file
from tests.support.mounting import Mounted

_NAMES = 300
_OPEN_AND_CLOSE = 2


@pytest.fixture
def workspace(mount: MountFunction, base: Path) -> Mounted:
    return mount(base)


def answers(mounted: Mounted) -> int:
    """How many requests the daemon has answered, or a few more."""
    lines = Path(f"/proc/{mounted.pid}/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["syscw"])


def fill(directory: Path, count: int = _NAMES) -> list[str]:
    directory.mkdir()
    names = [f"name {number:04}" for number in range(count)]
    for name in names:
        write_file(directory / name, b"x")
    return names


def test_sizes_of_the_structures() -> None:
    """Those of include/uapi/linux/fuse.h."""
    sizes = {
        wire.REPLY: 16,
        wire.INIT_OUT: 64,
        wire.ENTRY: 128,
        wire.OPEN_OUT: 16,
        wire.STATFS_OUT: 80,
        wire.DIRENT: 24,
        wire.SETATTR_IN: 88,
        wire.INVAL_INODE_OUT: 24,
        wire.INVAL_ENTRY_OUT: 16,
        wire.FORGET_ONE: 16,
        wire.RENAME2_IN: 16,
        wire.CREATE_IN: 16,
        wire.MKNOD_IN: 16,
    }
    assert {packing.format: packing.size for packing in sizes} == {
        packing.format: size for packing, size in sizes.items()
    }
    assert len(wire.attr_out(bytes(wire.ENTRY.size))) == 104


def test_a_second_look_asks_for_nothing_but_to_open(workspace: Mounted) -> None:
    names = fill(workspace.mountpoint / "d")
    assert sorted(os.listdir(workspace.mountpoint / "d")) == names
    workspace.call("status", flush=True)
    before = answers(workspace)
    looks = 50
    for _ in range(looks):
        with os.scandir(workspace.mountpoint / "d") as found:
            assert sum(entry.stat().st_size for entry in found) == _NAMES
    # Pages of 4 KiB would make it more than ten requests for each look. What the daemon does by
    # itself meanwhile is a few calls.
    assert answers(workspace) - before < looks * (_OPEN_AND_CLOSE + 1)


def test_names_that_come_and_go_through_the_mount(workspace: Mounted) -> None:
    top = workspace.mountpoint / "d"
    names = set(fill(top))
    for step in range(20):
        assert set(os.listdir(top)) == names
        gone = f"name {step:04}"
        (top / gone).unlink()
        write_file(top / f"new {step}", b"")
        (top / f"name {step + 100:04}").rename(top / f"moved {step}")
        names -= {gone, f"name {step + 100:04}"}
        names |= {f"new {step}", f"moved {step}"}
    assert set(os.listdir(top)) == names


def test_a_restore_brings_names_that_nobody_has_looked_up(workspace: Mounted) -> None:
    top = workspace.mountpoint / "d"
    names = fill(top)
    (top / "below").mkdir()
    first = workspace.checkpoint()
    for name in names[:100]:
        (top / name).unlink()
    write_file(top / "later", b"")
    subprocess.run(["sync", "-f", top], check=True)
    assert set(os.listdir(top)) == {*names[100:], "below", "later"}
    moment = os.stat(top).st_mtime_ns
    with opened(top, os.O_RDONLY | os.O_DIRECTORY) as held:
        assert set(os.listdir(held)) == {*names[100:], "below", "later"}
        workspace.restore(first)
        assert set(os.listdir(top)) == {*names, "below"}
        assert set(os.listdir(held)) == {*names, "below"}
        workspace.call("undo")
        assert set(os.listdir(top)) == {*names[100:], "below", "later"}
        assert set(os.listdir(held)) == {*names[100:], "below", "later"}
    assert os.stat(top).st_mtime_ns == moment


def test_a_restore_to_a_listing_of_the_same_time(workspace: Mounted) -> None:
    """The kernel compares the directory's mtime; that it is the same must not matter."""
    top = workspace.mountpoint / "d"
    fill(top, 10)
    os.utime(top, ns=(1_000, 1_000))
    first = workspace.checkpoint()
    (top / "name 0003").unlink()
    write_file(top / "another", b"")
    os.utime(top, ns=(1_000, 1_000))
    there = set(os.listdir(top))
    workspace.restore(first)
    assert "name 0003" in os.listdir(top)
    assert "another" not in os.listdir(top)
    workspace.call("undo")
    assert set(os.listdir(top)) == there


def test_a_directory_that_is_gone_lists_nothing(workspace: Mounted) -> None:
    top = workspace.mountpoint / "d"
    fill(top, 3)
    with opened(top, os.O_RDONLY | os.O_DIRECTORY) as fd:
        assert len(os.listdir(fd)) == 3
        for name in os.listdir(fd):
            (top / name).unlink()
        top.rmdir()
        assert os.listdir(fd) == []
        assert errno_of(os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=fd) == "ENOENT"


def test_a_long_listing_while_it_changes(workspace: Mounted) -> None:
    """readdir(3): what is neither added nor removed meanwhile is told exactly once."""
    top = workspace.mountpoint / "d"
    names = fill(top, 1000)
    with os.scandir(top) as found:
        seen = [next(found).name]
        for name in names[:300:2]:
            (top / name).unlink()
        for number in range(50):
            write_file(top / f"new {number}", b"")
        seen += [entry.name for entry in found]
    stay = {*names} - {*names[:300:2]}
    assert len(seen) == len(set(seen))
    assert stay <= set(seen)
    assert set(os.listdir(top)) == stay | {f"new {number}" for number in range(50)}


def by_parts(fd: int) -> Iterator[list[bytes]]:
    """The names that each getdents64(2) of an open directory gives, without `.` and `..`."""
    while names := getdents(fd):
        yield [name for name in names if name not in (b".", b"..")]


@pytest.mark.parametrize("linked", [False, True])
def test_a_kept_listing_that_is_dropped_while_it_is_read(workspace: Mounted, linked: bool) -> None:
    """readdir(3): who has read the first part from what the kernel kept is told the rest by the
    daemon, of a listing that is another one by then; each name that stays is told once."""
    top = workspace.mountpoint / "d"
    top.mkdir()
    names = [f"name {number:04}" for number in range(500)]
    for at, name in enumerate(names):
        if linked and at:
            os.link(top / names[0], top / name)
        else:
            write_file(top / name, b"")
    assert len(os.listdir(top)) == len(names)
    gone = set(names[:400:2])
    with opened(top, os.O_RDONLY | os.O_DIRECTORY) as fd:
        parts = by_parts(fd)
        seen = next(parts)
        for name in gone:
            (top / name).unlink()
        for number in range(50):
            write_file(top / f"new {number}", b"")
        with opened(top, os.O_RDONLY | os.O_DIRECTORY) as other:
            next(by_parts(other))  # the kernel sees that what it kept is old
        seen += [name for part in parts for name in part]
    assert len(seen) == len(set(seen))
    assert {*names} - gone <= {os.fsdecode(name) for name in seen}
    right = {*names} - gone | {f"new {number}" for number in range(50)}
    for _ in range(2):  # the second one comes from the kernel
        assert set(os.listdir(top)) == right


def test_two_listings_at_once_while_it_changes(workspace: Mounted) -> None:
    """opendir(3) and what follows tell what was made before, also when another one, that was begun
    earlier, is finished and kept by the kernel meanwhile."""
    top = workspace.mountpoint / "d"
    names = {os.fsencode(name) for name in fill(top, 500)}
    with opened(top, os.O_RDONLY | os.O_DIRECTORY) as early:
        parts, seen = by_parts(early), list[bytes]()
        while len(seen) < len(names):
            seen += next(parts)
        last = seen[-1]
        (top / os.fsdecode(last)).rename(top / "moved")
        right = names - {last} | {b"moved"}
        with opened(top, os.O_RDONLY | os.O_DIRECTORY) as late:
            others = by_parts(late)
            found = next(others)
            assert list(parts) == []
            found += [name for part in others for name in part]
    assert set(seen) == names
    assert len(found) == len(set(found))
    assert set(found) == right
    assert {os.fsencode(name) for name in os.listdir(top)} == right


def test_a_listing_from_the_start_again(workspace: Mounted) -> None:
    """rewinddir(3): what was made before is told, also where the kernel kept the first part."""
    top = workspace.mountpoint / "d"
    names = {os.fsencode(name) for name in fill(top, 500)}
    with opened(top, os.O_RDONLY | os.O_DIRECTORY) as fd:
        assert {name for part in by_parts(fd) for name in part} == names
        for number in range(50):
            write_file(top / f"new {number}", b"")
        right = names | {b"new %d" % number for number in range(50)}
        assert {os.fsencode(name) for name in os.listdir(top)} == right
        os.lseek(fd, 0, os.SEEK_SET)
        parts = by_parts(fd)
        seen = next(parts)
        gone = seen[0]
        (top / os.fsdecode(gone)).unlink()
        assert {os.fsencode(name) for name in os.listdir(top)} == right - {gone}
        seen += [name for part in parts for name in part]
    assert len(seen) == len(set(seen))
    assert set(seen) == right


def test_names_of_checkpoints_are_never_old(workspace: Mounted) -> None:
    top = workspace.mountpoint / ".cowfs/checkpoints"
    before = set(os.listdir(top))
    new = [workspace.checkpoint(str(n)) for n in range(3)]
    assert set(os.listdir(top)) == before | set(new)
    write_file(workspace.mountpoint / "f", b"x")
    last = workspace.checkpoint()
    assert set(os.listdir(top)) == before | {*new, last}


def test_a_symbolic_link_is_read_once(workspace: Mounted) -> None:
    link = workspace.mountpoint / "l"
    link.symlink_to("first")
    assert os.readlink(link) == "first"
    first = workspace.checkpoint()
    before = answers(workspace)
    assert {os.readlink(link) for _ in range(200)} == {"first"}
    assert answers(workspace) - before < 100
    link.unlink()
    link.symlink_to("second")
    assert os.readlink(link) == "second"
    workspace.restore(first)
    assert os.readlink(link) == "first"
    workspace.call("undo")
    assert os.readlink(link) == "second"
