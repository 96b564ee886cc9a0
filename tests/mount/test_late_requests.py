"""Requests that were made before a restore and are met after it.

The kernel knows names by what they were when it took them up. What it removes or moves must not be
something else: it would take a directory that is there for dead (rmdir(2), rename(2)), or show the
wrong one under the new name.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.service.verify import verify
from cowfs.volume.namespace import RENAME_EXCHANGE
from tests.conftest import MountFunction
from tests.mount.calls import eventually, opened, renameat2
from tests.mount.history import looking
from tests.support import mounting
from tests.support.mounting import Mounted


@pytest.fixture
def late(mount: MountFunction, base: Path, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    monkeypatch.setattr(mounting, "DAEMON", "tests.mount.late_requests")
    return mount(base)


def exchanged(mounted: Mounted, make: Callable[[Path], None]) -> tuple[int, int, str]:
    """Inode numbers of what is called `late` and `other`, and a checkpoint in which each has the
    other's name."""
    top = mounted.mountpoint
    for name, final in (("a", "late"), ("b", "other")):
        make(top / name)
        (top / name).rename(top / final)
    here = mounted.checkpoint()
    renameat2(top / "other", top / "late", RENAME_EXCHANGE)
    there = mounted.checkpoint()
    mounted.restore(here)
    return os.lstat(top / "late").st_ino, os.lstat(top / "other").st_ino, there


def meanwhile(mounted: Mounted, call: Callable[[], None], checkpoint: str) -> None:
    """Restore while a call is on its way to the daemon."""
    thread = threading.Thread(target=call)
    thread.start()
    eventually(lambda: " waits" in mounted.log())
    mounted.restore(checkpoint)
    thread.join()


def assert_sound(mounted: Mounted) -> None:
    with looking(mounted) as workspace:
        assert verify(workspace, mountpoint=str(mounted.mountpoint)).problems == []


def test_a_directory_that_is_removed(late: Mounted) -> None:
    top = late.mountpoint
    was_late, _, there = exchanged(late, Path.mkdir)
    with opened(top / "late"), opened(top / "other"):  # so that the kernel keeps both
        meanwhile(late, (top / "late").rmdir, there)
        assert os.listdir(top) == ["other"]
        assert os.lstat(top / "other").st_ino == was_late
        assert os.listdir(top / "other") == []
        (top / "other" / "file").touch()
    assert_sound(late)


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch], ids=["directory", "file"])
def test_what_is_renamed(late: Mounted, make: Callable[[Path], None]) -> None:
    top = late.mountpoint
    was_late, was_other, there = exchanged(late, make)
    with opened(top / "late"), opened(top / "other"):
        meanwhile(late, lambda: os.rename(top / "late", top / "moved"), there)
        assert sorted(os.listdir(top)) == ["moved", "other"]
        assert os.lstat(top / "other").st_ino == was_late
        assert os.lstat(top / "moved").st_ino == was_other
        assert_sound(late)


def test_a_file_that_is_removed(late: Mounted) -> None:
    top = late.mountpoint
    was_late, _, there = exchanged(late, Path.touch)
    with opened(top / "late"), opened(top / "other"):
        meanwhile(late, (top / "late").unlink, there)
        assert os.listdir(top) == ["other"]
        shown = os.lstat(top / "other")
        assert (shown.st_ino, shown.st_nlink) == (was_late, 1)
        assert_sound(late)
