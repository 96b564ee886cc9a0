"""Where a user may mount, and what is made for that user alone."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cowfs.api.mounting import Plan, check
from cowfs.client import places
from cowfs.daemon.refusals import explained
from cowfs.errors import FuseUnavailableError
from cowfs.mounts import mount_fault
from tests.cli.command import Cowfs
from tests.mount.calls import NOBODY, in_child
from tests.mount.mounts import (
    interpreter_for,
    need_users_mounts,
    own_interpreter,
    shared_mount,
)
from tests.support.mounting import MountRefusedError


def by_a_user(body: Callable[[], None]) -> None:
    """In a child process of an ordinary user: nobody, where root runs the tests."""
    in_child(body, uid=None if os.geteuid() else NOBODY)


@pytest.mark.parametrize("directory", ["/etc", "/tmp"])
def test_a_directory_of_somebody_else(directory: str) -> None:
    """fusermount3(1) refuses a mountpoint that its user cannot write, or that is sticky and not the
    user's. That is said before anything is made; root may."""
    st = os.stat(directory)
    if st.st_uid != 0 or (st.st_mode & stat.S_IWOTH and not st.st_mode & stat.S_ISVTX):
        pytest.skip(f"{directory} is another one than usual")

    def look() -> None:
        fault = mount_fault(directory)
        assert fault is not None
        assert directory in fault[0]
        assert "--at DIR" in fault[1]

    by_a_user(look)
    if os.geteuid() == 0:
        assert mount_fault(directory) is None


def test_it_is_checked_first() -> None:
    store = "/nowhere/store"

    def refused() -> None:
        with pytest.raises(FuseUnavailableError, match="/etc"):
            check(Plan("/etc", "/etc", store, allow_other=False), force=True)

    by_a_user(refused)
    assert not os.path.exists(store)


def test_what_fusermount_says_is_the_error() -> None:
    said = b"fusermount3: option allow_other only allowed if 'user_allow_other' is set in /x\n"

    def mount(text: bytes) -> None:
        with explained():
            os.write(2, text)
            raise RuntimeError("fuse_session_mount failed")

    with pytest.raises(FuseUnavailableError, match="FUSE cannot be used: option allow") as caught:
        mount(said)
    assert "without --allow-other" in caught.value.hint_text
    with pytest.raises(FuseUnavailableError, match="fuse_session_mount failed"):
        mount(b"")


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="cowfs-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_allow_other_without_leave(needs_fuse: None, open_place: Path) -> None:
    """A user's --allow-other, where /etc/fuse.conf does not have user_allow_other (fuse(8))."""
    try:
        lines = Path("/etc/fuse.conf").read_text().split("\n")
    except FileNotFoundError:
        lines = []
    if "user_allow_other" in [line.strip() for line in lines]:
        pytest.skip("/etc/fuse.conf allows it")
    uid, base = None if os.geteuid() else NOBODY, open_place / "home/base"
    base.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        if uid is not None:
            need_users_mounts()
            for path in (base.parent, base):
                os.chown(path, uid, uid)
            interpreter = stack.enter_context(interpreter_for(uid, open_place))
        else:
            interpreter = own_interpreter()
        mount = shared_mount(base, allow_other=True, uid=uid, interpreter=interpreter)
        with pytest.raises(MountRefusedError, match="user_allow_other") as caught, mount:
            pass
    assert caught.value.error["code"] == "COWFS_FUSE_UNAVAILABLE"
    assert "without --allow-other" in caught.value.error["hint"]


def test_no_place_for_stores(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    """The user's directories cannot be made (nobody makes one in /sys): it is said what to type.
    Then it is mounted, but cannot be noted."""
    cowfs.env["XDG_DATA_HOME"] = "/sys/home"
    error = cowfs.fails("mount", project)
    assert (error["code"], error["exit_code"]) == ("COWFS_PERMISSION", 30)
    assert "/sys/home" in error["message"]
    assert "--store PATH" in error["hint"]
    assert cowfs.mounts() == []
    store = cowfs.top / "store"
    result = cowfs.run("mount", project, "--store", store)
    assert result.code == 0
    assert f"mount it again with --store {store}" in result.err
    assert cowfs.ok("status", cwd=project)["store"] == str(store)
    cowfs.ok("unmount", project)
    assert cowfs.fails("log", cwd=project)["code"] == "COWFS_NOT_A_WORKSPACE"
    assert cowfs.ok("mount", project, "--store", store)["store"] == str(store)


def test_for_its_user_alone_whatever_the_umask(cowfs: Cowfs, project: Path) -> None:
    """The directory of stores, the list of workspaces and the journal of hooks."""
    data = cowfs.top / "deep/data"
    cowfs.env["XDG_DATA_HOME"] = str(data)
    cowfs.in_process = True
    umask = os.umask(0)
    try:
        cowfs.ok("mount", project)
        (project / "new").write_text("new")
        cowfs.ok("config", "checkpoints.settle", "9s", cwd=project)
        cowfs.ok("unmount", project)
    finally:
        os.umask(umask)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in [data, *data.rglob("*")]}
    assert len(found) > 8
    assert {str(path): mode for path, mode in found.items() if mode & 0o077} == {}
    assert stat.S_IMODE(data.parent.stat().st_mode) == 0o700
    assert places.registry(str(data / "cowfs"))[0]["base"] == str(project)
