"""fallocate(2), lseek(2) for data and holes, and O_TMPFILE on a mount."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.format.audit import CUT
from cowfs.mount import wire
from cowfs.mount.operations import Operations
from cowfs.mount.requests import Caller
from cowfs.store.group import TransactionGroup
from cowfs.types import BLOCK_SIZE
from cowfs.volume.sparse import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from tests.audit.acting import operations, processes, told
from tests.conftest import MountFunction
from tests.mount.calls import (
    AT_SYMLINK_FOLLOW,
    NOBODY,
    errno_of,
    fallocate,
    in_child,
    linkat,
    opened,
    read_all,
)
from tests.mount.mounts import killed_and_mounted_again
from tests.support.mounting import Mounted
from tests.support.volumes import Rig

B = BLOCK_SIZE
PUNCH = PUNCH_HOLE | KEEP_SIZE
OLD = 10**18
"""A time of 2001, in ns."""

Scenario = Callable[[Path], None]


# -- the same as on an ordinary file system ------------------------------------------------------


def sizes(top: Path) -> None:
    """fallocate(2): which modes make the file longer; what was not written reads as zeros."""
    for mode, size in [
        (0, 9000),
        (KEEP_SIZE, 10),
        (ZERO_RANGE, 9000),
        (ZERO_RANGE | KEEP_SIZE, 10),
    ]:
        with opened(top / f"f{mode}", os.O_CREAT | os.O_RDWR) as fd:
            os.write(fd, b"0123456789")  # only in the kernel's cache
            fallocate(fd, mode, 4, 8996)
            assert os.fstat(fd).st_size == size
            kept = b"0123456789" if mode in (0, KEEP_SIZE) else b"0123"
            assert read_all(fd) == kept.ljust(size, b"\0")


def appending(top: Path) -> None:
    """What is appended follows the size that was set in advance."""
    with opened(top / "f", os.O_CREAT | os.O_RDWR | os.O_APPEND) as fd:
        os.write(fd, b"one")
        fallocate(fd, 0, 0, 100)
        os.write(fd, b"two")
        fallocate(fd, KEEP_SIZE, 0, 1 << 20)
        os.write(fd, b"three")
        assert read_all(fd) == b"one".ljust(100, b"\0") + b"twothree"


def holes_in_what_is_cached(top: Path) -> None:
    """Zeros are seen by descriptors and mappings, whatever the page cache had, and what follows
    the hole is not lost."""
    with opened(top / "f", os.O_CREAT | os.O_RDWR) as fd, opened(top / "f") as other:
        content = bytes(range(1, 251)) * 1200
        os.write(fd, content)
        with mmap.mmap(fd, len(content)) as mapping:
            mapping[200_000:200_004] = b"stay"
            mapping[70_000:70_004] = b"gone"
            fallocate(fd, PUNCH, 5000, 3 * B - 5000)
            expected = bytearray(content)
            expected[200_000:200_004] = b"stay"
            expected[5000 : 3 * B] = bytes(3 * B - 5000)
            assert mapping[:] == expected
            assert read_all(other) == expected
            mapping[6000:6003] = b"new"
            expected[6000:6003] = b"new"
            assert read_all(other) == expected
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert read_all(fd) == expected


def times(top: Path) -> None:
    """Allocating and punching set mtime and ctime (ext4, XFS and the kernel's FUSE do)."""
    for mode in (0, PUNCH, ZERO_RANGE):
        with opened(top / f"f{mode}", os.O_CREAT | os.O_RDWR) as fd:
            os.write(fd, b"x" * 10_000)
            os.utime(fd, ns=(OLD, OLD))
            fallocate(fd, mode, 0, 20_000 if mode == 0 else 5000)
            assert os.fstat(fd).st_mtime_ns > OLD
        assert os.stat(top / f"f{mode}").st_mtime_ns > OLD


def errors(top: Path) -> None:
    with opened(top / "f", os.O_CREAT | os.O_RDWR) as fd:
        assert errno_of(fallocate, fd, 0, 0, 0) == "EINVAL"
        assert errno_of(fallocate, fd, 0, -1, 5) == "EINVAL"
        assert errno_of(fallocate, fd, PUNCH_HOLE, 0, 5) == "ENOTSUP"
        assert errno_of(os.lseek, fd, 0, os.SEEK_DATA) == "ENXIO"
        assert errno_of(os.lseek, fd, 0, os.SEEK_HOLE) == "ENXIO"
        assert errno_of(os.lseek, fd, -1, os.SEEK_DATA) == "ENXIO"
    with opened(top / "f") as fd:
        assert errno_of(fallocate, fd, 0, 0, 5) == "EBADF"


def written_data_is_no_hole(top: Path) -> None:
    """Also what is in the kernel's cache alone, by write(2) or a mapping, and the size that only
    the kernel knows."""
    with opened(top / "f", os.O_CREAT | os.O_RDWR) as fd, opened(top / "f") as other:
        os.ftruncate(fd, 8 * B)
        os.fsync(fd)
        os.pwrite(fd, b"x", 3 * B + 5)
        for seeker in (fd, other):
            assert os.lseek(seeker, 0, os.SEEK_DATA) <= 3 * B + 5
            assert os.lseek(seeker, 3 * B + 5, os.SEEK_DATA) == 3 * B + 5
            assert os.lseek(seeker, 3 * B + 5, os.SEEK_HOLE) > 3 * B + 5
        with mmap.mmap(fd, 8 * B) as mapping:
            mapping[6 * B + 1] = 1
            assert os.lseek(other, 6 * B + 1, os.SEEK_DATA) == 6 * B + 1
            mapping[6 * B + 1] = 2
        os.pwrite(fd, b"y", 20 * B)
        assert os.lseek(other, 20 * B, os.SEEK_DATA) == 20 * B
        assert os.lseek(other, 20 * B, os.SEEK_HOLE) == 20 * B + 1
        assert errno_of(os.lseek, other, 20 * B + 1, os.SEEK_DATA) == "ENXIO"
        assert os.pread(other, 1, 6 * B + 1) == b"\2"


def unnamed(top: Path) -> None:
    """open(2), O_TMPFILE: a file without a name, until linkat(2) gives it one."""
    with opened(top, os.O_TMPFILE | os.O_RDWR, 0o640) as fd:
        os.write(fd, b"content" * 20_000)
        status = os.fstat(fd)
        assert (status.st_nlink, stat.S_IMODE(status.st_mode)) == (0, 0o640)
        assert os.listdir(top) == []
        os.setxattr(fd, "user.a", b"1")
        linkat(f"/proc/self/fd/{fd}", top / "f", AT_SYMLINK_FOLLOW)
        os.write(fd, b"more")
        status = os.fstat(fd)
        assert (status.st_nlink, status.st_size) == (1, 140_004)
        assert errno_of(linkat, f"/proc/self/fd/{fd}", top / "f", AT_SYMLINK_FOLLOW) == "EEXIST"
        linkat(f"/proc/self/fd/{fd}", top / "g", AT_SYMLINK_FOLLOW)
        assert os.fstat(fd).st_nlink == 2
    assert (top / "f").read_bytes() == b"content" * 20_000 + b"more"
    assert os.getxattr(top / "g", "user.a") == b"1"
    os.unlink(top / "f")
    os.unlink(top / "g")


def unnamed_for_good(top: Path) -> None:
    """With O_EXCL there is never a name; a file that lost its last one gets none either."""
    with opened(top, os.O_TMPFILE | os.O_RDWR | os.O_EXCL) as fd:
        assert errno_of(linkat, f"/proc/self/fd/{fd}", top / "f", AT_SYMLINK_FOLLOW) == "ENOENT"
    with opened(top / "g", os.O_CREAT | os.O_RDWR) as fd:
        os.unlink(top / "g")
        assert errno_of(linkat, f"/proc/self/fd/{fd}", top / "g", AT_SYMLINK_FOLLOW) == "ENOENT"
    assert errno_of(os.open, top, os.O_TMPFILE | os.O_RDONLY) == "EINVAL"


SCENARIOS = [
    *(sizes, appending, holes_in_what_is_cached, times, errors),
    *(written_data_is_no_hole, unnamed, unnamed_for_good),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_same_as_an_ordinary_file_system(
    scenario: Scenario, module_mount: Mounted, tmp_path: Path
) -> None:
    for parent in (tmp_path, module_mount.mountpoint):
        top = parent / scenario.__name__
        top.mkdir()
        scenario(top)


def test_privileges_are_dropped(others_mount: Mounted) -> None:
    """inode(7): who may not keep them changes a file without its setuid and setgid bits."""
    top = others_mount.mountpoint / "privileges"
    top.mkdir()
    top.chmod(0o777)
    for mode in (0, PUNCH):
        path = top / f"f{mode}"
        path.write_bytes(b"x" * 100)
        path.chmod(0o6777)

        def change(path: Path = path, mode: int = mode) -> None:
            with opened(path, os.O_RDWR) as fd:
                fallocate(fd, mode, 0, 50)

        in_child(change, uid=NOBODY)
        assert stat.S_IMODE(path.stat().st_mode) == 0o777


# -- what only a mount has -------------------------------------------------------------------------


def test_exactly_where_the_holes_are(module_mount: Mounted) -> None:
    """Also while the file is open for writing, and with pages that were not sent."""
    with opened(module_mount.mountpoint / "exact", os.O_CREAT | os.O_RDWR) as fd:
        os.ftruncate(fd, 9 * B)
        os.pwrite(fd, b"x", 2 * B)
        os.pwrite(fd, b"x", 5 * B)
        assert os.lseek(fd, 0, os.SEEK_DATA) == 2 * B
        assert os.lseek(fd, 2 * B, os.SEEK_HOLE) == 3 * B
        assert os.lseek(fd, 3 * B, os.SEEK_DATA) == 5 * B
        assert os.lseek(fd, 5 * B, os.SEEK_HOLE) == 6 * B
        assert errno_of(os.lseek, fd, 6 * B, os.SEEK_DATA) == "ENXIO"
        fallocate(fd, PUNCH, 2 * B, B)
        assert os.lseek(fd, 0, os.SEEK_DATA) == 5 * B


def test_holes_of_a_base_file_in_a_checkpoint(mount: MountFunction, base: Path) -> None:
    """Which only the base has the content of."""
    with open(base / "f", "wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"data")
    mounted = mount(base)
    top = mounted.mountpoint
    checkpoint = mounted.checkpoint()
    os.truncate(top / "f", 1)
    source = top / ".cowfs/checkpoints" / checkpoint / "f"
    with opened(source) as fd:
        assert os.lseek(fd, 0, os.SEEK_DATA) == 32 << 20
        assert os.lseek(fd, 32 << 20, os.SEEK_HOLE) == (32 << 20) + B
        assert errno_of(os.lseek, fd, 64 << 20, os.SEEK_DATA) == "ENXIO"


def test_checkpoints_and_restores(mount: MountFunction, base: Path) -> None:
    """The base stays; a handle that is open follows a restore."""
    content = os.urandom(4 * B + 7)
    (base / "f").write_bytes(content)
    mounted = mount(base)
    before = mounted.checkpoint()
    with opened(mounted.mountpoint / "f", os.O_RDWR) as fd:
        fallocate(fd, PUNCH, B, 2 * B)
        fallocate(fd, 0, 0, 6 * B)
        now = (content[:B] + bytes(2 * B) + content[3 * B :]).ljust(6 * B, b"\0")
        after = mounted.checkpoint()
        assert read_all(fd) == now
        mounted.restore(before)
        assert read_all(fd) == content
        assert os.lseek(fd, 0, os.SEEK_HOLE) == len(content)
        mounted.restore(after)
        assert read_all(fd) == now
        assert os.lseek(fd, 0, os.SEEK_HOLE) == B
    mounted.unmount(apply=True)
    assert (base / "f").read_bytes() == now


def test_a_file_without_a_name_and_checkpoints(mount: MountFunction, base: Path) -> None:
    mounted = mount(base)
    top = mounted.mountpoint
    with opened(top, os.O_TMPFILE | os.O_RDWR) as fd:
        os.write(fd, b"one" * 50_000)
        first = mounted.checkpoint()
        os.write(fd, b"two")
        linkat(f"/proc/self/fd/{fd}", top / "f", AT_SYMLINK_FOLLOW)
        second = mounted.checkpoint()
        expected = b"one" * 50_000 + b"two"
        mounted.restore(first)
        assert os.listdir(top) == []
        assert read_all(fd) == expected  # as a file that was unlinked
        assert errno_of(linkat, f"/proc/self/fd/{fd}", top / "g", AT_SYMLINK_FOLLOW) == "ENOENT"
        mounted.restore(second)
        assert (top / "f").read_bytes() == expected
    with opened(top, os.O_TMPFILE | os.O_RDWR) as fd:
        mounted.restore(first)
        assert errno_of(linkat, f"/proc/self/fd/{fd}", top / "g", AT_SYMLINK_FOLLOW) == "ENOENT"


def test_a_killed_daemon(mount: MountFunction, base: Path) -> None:
    """Contract 4: what was synced with a name is there, and nothing of what had none."""
    mounted = mount(base)
    top = mounted.mountpoint
    with (
        opened(top, os.O_TMPFILE | os.O_RDWR) as named,
        opened(top, os.O_TMPFILE | os.O_RDWR) as unnamed,
    ):
        for fd in (named, unnamed):
            os.write(fd, os.urandom(3 * B))
        content = read_all(named)
        linkat(f"/proc/self/fd/{named}", top / "f", AT_SYMLINK_FOLLOW)
        fallocate(named, PUNCH, B, B)
        os.fsync(unnamed)
        os.fsync(named)
    mounted = killed_and_mounted_again(mounted, mount)
    assert os.listdir(top) == ["f"]
    assert (top / "f").read_bytes() == content[:B] + bytes(B) + content[2 * B :]


# -- requests ------------------------------------------------------------------------------------


class Elsewhere:
    """A kernel whose pages nobody can wait for, and a store that has no more room."""

    gets_pages = False
    correcting = False

    async def committed(self, group: TransactionGroup) -> None:
        group.done = True

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


@pytest.fixture
def handlers(volume: Rig) -> Operations:
    return Operations(volume.volume, Elsewhere())  # type: ignore[arg-type]


def opened_by(handlers: Operations, ino: int, flags: int) -> int:
    answer = handlers.open(ino, flags, Caller(os.getpid(), 0, 0))
    assert isinstance(answer, bytes)
    return int(wire.OPEN_OUT.unpack(answer)[0])


def test_pages_that_nobody_can_wait_for(volume: Rig, handlers: Operations) -> None:
    """A kernel before 6.16: a hole of a file that is open for writing may be none."""
    ino = volume.create(b"f", b"x").ino
    volume.truncate(b"f", 3 * B)
    reader = opened_by(handlers, ino, os.O_RDONLY)
    assert handlers.lseek(reader, 0, os.SEEK_HOLE) == wire.LSEEK_OUT.pack(B)
    writer = opened_by(handlers, ino, os.O_RDWR)
    assert handlers.lseek(reader, 0, os.SEEK_HOLE) == errno.ENOSYS
    assert handlers.lseek(reader, B, os.SEEK_DATA) == errno.ENOSYS
    assert handlers.lseek(reader, 5, os.SEEK_DATA) == wire.LSEEK_OUT.pack(5)
    for fh in (reader, writer):
        handlers.release(fh)


def test_who_did_it(volume: Rig, handlers: Operations) -> None:
    ino = volume.create(b"f", b"x" * B).ino
    volume.volume.sync()
    fh = opened_by(handlers, ino, os.O_RDWR)
    handlers.fallocate(fh, 0, B, KEEP_SIZE, os.getpid())
    volume.volume.sync()
    assert told(volume) == []
    handlers.fallocate(fh, 0, 10, PUNCH, os.getpid())
    handlers.fallocate(fh, 0, 2 * B, 0, os.getpid())
    ((record, operation),) = operations(volume)
    assert (told(volume), operation.what, operation.count) == ([("wrote", "f")], CUT, 2)
    assert processes(volume)[record.process].pid == os.getpid()
    handlers.release(fh)
