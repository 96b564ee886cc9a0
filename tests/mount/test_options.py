"""A mount is no way around what the file system of the base forbids: set-user-ID programs, device
files, programs (mount(8): nosuid, nodev, noexec)."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from cowfs.mounts import top_mount
from tests.mount.calls import NOBODY, errno_of, in_child
from tests.mount.mounts import interpreter_for, need_users_mounts, shared_mount
from tests.support.mounting import Mounted

ID = shutil.which("id") or ""


@pytest.fixture
def place(open_directory: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("making devices and set-user-ID programs of root needs root")
    directory = open_directory / "options"
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)


@contextmanager
def tmpfs(place: Path, options: str) -> Iterator[Path]:
    """A file system with mount options, with a base directory in it."""
    at = place / "disk"
    at.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"mode=755,size=64m{options}", "none", str(at)]
    subprocess.run(command, check=True, timeout=30)
    try:
        base = at / "base"
        base.mkdir()
        yield base
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True, timeout=30)


def plant(base: Path) -> None:
    """A program that runs as root, and a device that everybody may open."""
    shutil.copy(ID, base / "id")
    (base / "id").chmod(0o4755)
    os.mknod(base / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (base / "null").chmod(0o666)


def user_of(program: Path) -> int:
    """As whom the program runs that nobody starts."""
    done = subprocess.run(
        [program, "-u"],
        check=True,
        capture_output=True,
        timeout=30,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
    )
    return int(done.stdout)


def flags_of(directory: Path) -> frozenset[str]:
    mount = top_mount(str(directory))
    assert mount is not None
    return mount.options & {"nosuid", "nodev", "noexec"}


@pytest.mark.parametrize(
    "options", ["", "nosuid", "nodev", "noexec", "nosuid,nodev,noexec"], ids=lambda o: o or "none"
)
def test_as_the_base_file_system(place: Path, options: str) -> None:
    forbidden = frozenset(options.split(",")) - {""}
    with tmpfs(place, f",{options}" if options else "") as base:
        plant(base)
        assert top_mount(str(base.parent)) is not None
        with shared_mount(base, allow_other=True) as mounted:
            top = mounted.mountpoint
            assert flags_of(top) == forbidden
            plant_again = top / "made"
            plant_again.mkdir()
            plant(plant_again)
            for directory in (top, plant_again):
                wanted = "EACCES" if "nodev" in forbidden else ""
                assert errno_of(_open_and_close, directory / "null") == wanted
                if "noexec" in forbidden:
                    assert errno_of(user_of, directory / "id") == "EACCES"
                else:
                    wanted_user = NOBODY if "nosuid" in forbidden else 0
                    assert user_of(directory / "id") == wanted_user


def _open_and_close(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR))


def test_a_view_elsewhere_has_the_flags_of_both(
    place: Path, mounted: Callable[..., AbstractContextManager[Mounted]], tmp_path: Path
) -> None:
    with tmpfs(place, ",nodev") as base:
        view = tmp_path / "view"
        view.mkdir()
        with mounted(base, tmp_path / "store", view) as live:
            assert flags_of(live.mountpoint) >= {"nodev"}


def test_the_mount_of_an_ordinary_user(open_directory: Path) -> None:
    """Never set-user-ID, never devices, whatever lies in the base."""
    need_users_mounts()
    base = open_directory / "home" / "base"
    base.mkdir(parents=True)
    plant(base)
    for path in (base.parent, base):
        os.chown(path, NOBODY, NOBODY)

    def look() -> None:
        assert errno_of(_open_and_close, base / "null") == "EACCES"
        done = subprocess.run([base / "id", "-u"], check=True, capture_output=True, timeout=30)
        assert int(done.stdout) == NOBODY

    with (
        interpreter_for(NOBODY, open_directory) as interpreter,
        shared_mount(base, uid=NOBODY, interpreter=interpreter) as mounted,
    ):
        assert flags_of(mounted.mountpoint) >= {"nosuid", "nodev"}
        in_child(look, uid=NOBODY)
