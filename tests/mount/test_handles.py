"""File handles of name_to_handle_at(2): what NFS servers and backup programs keep instead of paths.

A handle outlives the kernel's own memory of an inode, and the daemon; not the inode.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from tests.conftest import MountFunction
from tests.mount.calls import drop_caches, opened
from tests.support.mounting import Mounted

_LIBC = ctypes.CDLL(None, use_errno=True)
_ROOM = 128

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs CAP_DAC_READ_SEARCH")


def handle(path: Path) -> bytes:
    """A struct file_handle: its size, its type, its bytes."""
    made = ctypes.create_string_buffer(_ROOM.to_bytes(4, "little"), 8 + _ROOM)
    mount_id = ctypes.c_int()
    result = _LIBC.name_to_handle_at(-100, os.fsencode(path), made, ctypes.byref(mount_id), 0)
    assert result == 0, os.strerror(ctypes.get_errno())
    return made.raw


def reopen(mounted: Mounted, kept: bytes, flags: int = os.O_RDONLY) -> int:
    with opened(mounted.mountpoint, os.O_RDONLY) as top:
        fd = int(_LIBC.open_by_handle_at(top, kept, flags))
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd


def content(mounted: Mounted, kept: bytes) -> bytes:
    fd = reopen(mounted, kept)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def is_stale(mounted: Mounted, kept: bytes) -> bool:
    try:
        os.close(reopen(mounted, kept))
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return True
    return False


@pytest.mark.parametrize("who_forgets", ["nobody", "kernel", "daemon"])
def test_a_handle_finds_its_inode(mount: MountFunction, base: Path, who_forgets: str) -> None:
    mounted = mount(base)
    top = mounted.mountpoint
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "b" / "f").write_bytes(b"content")
    os.symlink("f", top / "a" / "b" / "s")
    places = [top, top / "a", top / "a" / "b", top / "a" / "b" / "f"]
    handles = [handle(place) for place in places]
    seen = [place.stat() for place in places]
    if who_forgets == "kernel":
        drop_caches()
    elif who_forgets == "daemon":
        mounted.unmount()
        mounted = mount(base)
    for place, kept, st in reversed(list(zip(places, handles, seen, strict=True))):
        fd = reopen(mounted, kept)
        found = os.fstat(fd)
        assert (found.st_ino, found.st_mode, found.st_mtime_ns) == (
            st.st_ino,
            st.st_mode,
            st.st_mtime_ns,
        )
        if place.is_dir():  # the kernel has to find out where it is: by `..`, and a listing there
            assert os.readlink(f"/proc/self/fd/{fd}") == str(place)
            assert os.listdir(fd) == os.listdir(place)
        os.close(fd)
    fd = reopen(mounted, handles[3], os.O_RDWR)
    os.write(fd, b"C")
    os.close(fd)
    assert places[3].read_bytes() == b"Content"
    mounted.unmount()


def test_of_what_is_gone(mount: MountFunction, base: Path) -> None:
    """ESTALE (open_by_handle_at(2)) without a name, unless it is open; a restore brings it back."""
    mounted = mount(base)
    top = mounted.mountpoint
    (top / "d").mkdir()
    (top / "d" / "f").write_bytes(b"content")
    directory, file = handle(top / "d"), handle(top / "d" / "f")
    kept = mounted.checkpoint()
    with opened(top / "d" / "f", os.O_RDONLY):
        os.unlink(top / "d" / "f")
        drop_caches()
        assert content(mounted, file) == b"content"
    os.rmdir(top / "d")
    drop_caches()
    assert is_stale(mounted, file)
    assert is_stale(mounted, directory)
    mounted.restore(kept)
    assert content(mounted, file) == b"content"
    assert not is_stale(mounted, directory)
    mounted.call("undo")
    drop_caches()
    assert is_stale(mounted, file)
    mounted.unmount()


def test_of_a_checkpoint(mount: MountFunction, base: Path) -> None:
    """The next life may have another checkpoint under the same number: never a wrong file."""
    mounted = mount(base)
    top = mounted.mountpoint
    handles = []
    for number in range(3):
        (top / "f").write_bytes(b"%d" % number)
        place = top / ".cowfs" / "checkpoints" / mounted.checkpoint()
        handles += [handle(place / "f"), handle(place)]
    for number, kept in enumerate(handles[::2]):
        assert is_stale(mounted, kept) or content(mounted, kept) == b"%d" % number
    mounted.unmount()
    mounted = mount(base)
    for kept in handles:
        assert is_stale(mounted, kept)
    mounted.unmount()
