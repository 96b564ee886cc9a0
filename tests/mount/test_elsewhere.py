"""What the daemon does through its own mount happens in the mount, whatever lies in the way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.conftest import MountFunction
from tests.mount.calls import EXCHANGE, Inotify, renameat2, write_file
from tests.support.listing import Listing, difference, listing
from tests.support.mounting import Mounted

NAMES = [f"f{number}" for number in range(8)]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that nothing here may change, with the names that the workspace has."""
    directory = tmp_path / "outside"
    directory.mkdir()
    for name in NAMES:
        write_file(directory / name, b"precious", 0o640)
        os.utime(directory / name, ns=(1, 1))
    (directory / "gone").mkdir()
    os.utime(directory, ns=(2, 2))
    return directory


@contextmanager
def swapping(one: Path, other: Path) -> Iterator[list[int]]:
    """Two names change places all the time while the block runs; yields [how often]."""
    end, count = threading.Event(), [0]

    def swap() -> None:
        while not end.is_set():
            with suppress(OSError):  # a restore is between them
                renameat2(one, other, EXCHANGE)
                count[0] += 1

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield count
    finally:
        end.set()
        thread.join()


def as_it_was(outside: Path, before: Listing) -> None:
    assert difference(before, listing(outside)) == []


@pytest.mark.parametrize("lies_there", ["nothing", "link", "directory", "file"])
def test_a_name_that_looks_like_the_daemons_own(
    mount: MountFunction, base: Path, outside: Path, lies_there: str
) -> None:
    """The daemon reaches inodes by a hidden directory. Nobody can put something in its place."""
    mounted = mount(base)
    name = mounted.mountpoint / ".cowfs-ghosts"
    with open(mounted.mountpoint / "open", "wb", buffering=0) as file:
        file.write(b"1" * 1000)
        ino = str(os.fstat(file.fileno()).st_ino)
        write_file(outside / ino, b"named as the open file's inode", 0o444)
        before = listing(outside)
        make: dict[str, Callable[[], object]] = {
            "nothing": lambda: None,
            "link": lambda: name.symlink_to(outside),
            "directory": lambda: os.makedirs(name / ino),
            "file": lambda: name.touch(),
        }
        assert not name.exists()  # which the kernel remembers
        make[lies_there]()
        assert name.exists() == (lies_there != "nothing")
        first = mounted.checkpoint()
        file.write(b"2" * 5000)
        mounted.restore(first)
        assert os.fstat(file.fileno()).st_size == 1000
        if lies_there == "directory":
            assert (name / ino).is_dir()
    as_it_was(outside, before)


def test_a_directory_above_the_mount_that_became_another(
    mount: MountFunction, tmp_path: Path, outside: Path
) -> None:
    """The path of the mount leads elsewhere, also to where there is a mount of its own."""
    above, elsewhere = tmp_path / "above", tmp_path / "elsewhere"
    for directory in (above, elsewhere):
        (directory / "base").mkdir(parents=True)
    mounted = mount(above / "base", tmp_path / "store")
    with open(mounted.mountpoint / "open", "wb", buffering=0) as file:
        file.write(b"1")
        write_file(elsewhere / "base/open", b"precious")
        before = listing(elsewhere)
        renameat2(above, elsewhere, EXCHANGE)
        first = mounted.checkpoint()
        file.write(b"2")
        mounted.restore(first)
        assert os.fstat(file.fileno()).st_size == 1
        assert difference(before, listing(above)) == []
    assert mounted.unmount()["mountpoint"] == str(elsewhere / "base")
    assert difference(before, listing(above)) == []
    renameat2(above, elsewhere, EXCHANGE)


def watched_states(mounted: Mounted, outside: Path) -> tuple[str, str]:
    """Checkpoints between which everything in `d` is made, changed and removed."""
    top = mounted.mountpoint / "d"
    top.mkdir()
    (mounted.mountpoint / "trap").symlink_to(outside)
    for name in NAMES[:4]:
        write_file(top / name, b"1" * 100)
    (top / "gone").mkdir()
    os.symlink("x", top / "link")
    first = mounted.checkpoint()
    for name in NAMES[:2]:
        os.unlink(top / name)
    for name in NAMES[2:4]:
        write_file(top / name, b"2" * 200, 0o600)
    for name in NAMES[4:]:
        write_file(top / name, b"3")
    (top / "gone").rmdir()
    (top / "link").unlink()
    (top / "came").mkdir()
    return first, mounted.checkpoint()


def test_directories_swapped_for_links_during_restores(
    mount: MountFunction, base: Path, outside: Path
) -> None:
    """Restores announce to watchers what changed, by calls that would really change something
    where a symbolic link leads."""
    mounted = mount(base)
    first, second = watched_states(mounted, outside)
    before = listing(outside)
    directory, trap = mounted.mountpoint / "d", mounted.mountpoint / "trap"
    for _ in range(10):
        for checkpoint in (first, second):
            watcher = Inotify()
            watcher.watch(directory)
            with swapping(directory, trap):
                mounted.restore(checkpoint)
            as_it_was(outside, before)
            watcher.close()
            mounted.restore(checkpoint)
