"""POSIX on a mount, through system calls: the same as on the kernel's own file systems."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount import scenarios
from tests.mount.calls import NOBODY, errno_of, in_child, opened, write_file
from tests.mount.errnos import ROWS, Row, prepare
from tests.mount.scenarios import ANYONE, ROOT, Scenario
from tests.support.mounting import Mounted


@contextlib.contextmanager
def directory_in(parent: Path) -> Iterator[Path]:
    """An empty directory that is removed at the end, whatever is in it."""
    top = parent / "scenario"
    top.mkdir()
    try:
        yield top
    finally:
        subprocess.run(["rm", "-rf", "--", top], check=True)


def _result(row: Row, parent: Path) -> str:
    """What the row's call gives in a fresh directory, in a process of its own."""
    with directory_in(parent) as top:
        prepare(top)
        reading, writing = os.pipe()

        def call() -> None:
            os.write(writing, errno_of(row.call, top).encode())

        in_child(call)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            return pipe.read().decode()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.situation.replace(" ", "-"))
def test_errno(row: Row, module_mount: Mounted, tmp_path: Path) -> None:
    assert _result(row, tmp_path) == row.errno, "on an ordinary file system"
    assert _result(row, module_mount.mountpoint) == row.errno, "on the mount"


@pytest.mark.parametrize("scenario", [*ANYONE, *ROOT], ids=lambda fn: fn.__name__)
def test_same_as_an_ordinary_file_system(
    scenario: Scenario, module_mount: Mounted, tmp_path: Path
) -> None:
    if scenario in ROOT and os.geteuid() != 0:
        pytest.skip("needs root")
    with directory_in(tmp_path) as top:
        scenario(top)
    with directory_in(module_mount.mountpoint) as top:
        scenario(top)


def test_what_has_no_handler_says_so(module_mount: Mounted) -> None:
    with directory_in(module_mount.mountpoint) as top:
        scenarios.unsupported(top)


def test_statfs_is_that_of_the_store(module_mount: Mounted) -> None:
    shown, real = os.statvfs(module_mount.mountpoint), os.statvfs(module_mount.store)
    assert shown.f_namemax == 255
    assert (shown.f_bsize, shown.f_frsize) == (real.f_bsize, real.f_frsize)
    assert (shown.f_blocks, shown.f_files) == (real.f_blocks, real.f_files)
    # Others may use the disk meanwhile: compare the free space between two looks at it.
    again = os.statvfs(module_mount.store)
    low, high = sorted((real.f_bavail, again.f_bavail))
    slack = 64 << 20
    assert low - slack // real.f_frsize <= shown.f_bavail <= high + slack // real.f_frsize
    assert shown.f_bfree >= shown.f_bavail > 0
    subprocess.run(["df", module_mount.mountpoint], check=True, capture_output=True)


# -- other users --------------------------------------------------------------------------------


def test_permissions_of_another_user(others_mount: Mounted) -> None:
    with directory_in(others_mount.mountpoint) as top:
        top.chmod(0o755)
        write_file(top / "private", b"secret", 0o600)
        write_file(top / "public", b"read me", 0o644)
        write_file(top / "open", b"", 0o666)
        write_file(top / "group", b"for the group", 0o640)
        os.chown(top / "group", 0, 7777)
        write_file(top / "no-group", b"", 0o604)
        os.chown(top / "no-group", 0, 7777)
        (top / "closed").mkdir(0o700)
        write_file(top / "closed/in", b"")
        (top / "search").mkdir()
        (top / "search").chmod(0o711)
        write_file(top / "search/in", b"known name", 0o644)
        (top / "list").mkdir()
        (top / "list").chmod(0o744)
        write_file(top / "list/in", b"")
        write_file(top / "program", b"#!/bin/sh\n", 0o644)

        def other() -> None:
            assert errno_of(os.open, top / "private", os.O_RDONLY) == "EACCES"
            assert not os.access(top / "private", os.R_OK)
            assert (top / "public").read_bytes() == b"read me"
            assert errno_of(os.open, top / "public", os.O_WRONLY) == "EACCES"
            assert errno_of(os.truncate, top / "public", 0) == "EACCES"
            write_file(top / "open", b"anyone")
            assert errno_of(os.chmod, top / "open", 0o777) == "EPERM"
            assert errno_of(os.chown, top / "open", NOBODY, NOBODY) == "EPERM"
            assert errno_of(os.utime, top / "open", (1, 1)) == "EPERM"
            assert errno_of(os.utime, top / "public") == "EACCES"
            assert errno_of(os.unlink, top / "open") == "EACCES"
            assert errno_of(os.rename, top / "open", top / "new") == "EACCES"
            assert errno_of(os.mkdir, top / "new") == "EACCES"
            assert errno_of(os.link, top / "open", top / "new") in ("EACCES", "EPERM")
            assert errno_of(os.stat, top / "closed/in") == "EACCES"
            assert errno_of(os.listdir, top / "closed") == "EACCES"
            assert (top / "search/in").read_bytes() == b"known name"
            assert errno_of(os.listdir, top / "search") == "EACCES"
            assert os.listdir(top / "list") == ["in"]
            assert errno_of(os.stat, top / "list/in") == "EACCES"
            assert errno_of(os.execv, top / "program", ["program"]) == "EACCES"
            assert errno_of(os.setxattr, top / "public", "user.x", b"") == "EACCES"
            assert errno_of(os.setxattr, top / "open", "trusted.x", b"") == "EPERM"
            assert "trusted.x" not in os.listxattr(top / "open")

        def outside_the_group() -> None:
            assert errno_of(os.open, top / "group", os.O_RDONLY) == "EACCES"
            assert errno_of(os.open, top / "no-group", os.O_RDONLY) == ""

        def in_the_group() -> None:
            assert (top / "group").read_bytes() == b"for the group"
            assert errno_of(os.open, top / "no-group", os.O_RDONLY) == "EACCES"

        in_child(other, uid=NOBODY)
        in_child(outside_the_group, uid=NOBODY)
        in_child(in_the_group, uid=NOBODY, groups=(7777,))


def test_a_mode_change_counts_at_once_for_another_user(others_mount: Mounted) -> None:
    with directory_in(others_mount.mountpoint) as top:
        top.chmod(0o755)
        path = top / "f"
        write_file(path, b"data", 0o644)
        in_child(lambda: path.read_bytes(), uid=NOBODY)
        path.chmod(0o600)
        in_child(lambda: _expect(errno_of(os.open, path, os.O_RDONLY), "EACCES"), uid=NOBODY)
        top.chmod(0o700)
        path.chmod(0o644)
        in_child(lambda: _expect(errno_of(os.stat, path), "EACCES"), uid=NOBODY)


def _expect(found: object, right: object) -> None:
    assert found == right


def test_what_another_user_makes_is_its_own(others_mount: Mounted) -> None:
    with directory_in(others_mount.mountpoint) as top:
        top.chmod(0o777)

        def make() -> None:
            os.umask(0o022)
            write_file(top / "f", b"mine")
            os.mkdir(top / "d")
            os.symlink("f", top / "l")
            os.mkfifo(top / "p")
            with opened(top / "readonly", os.O_CREAT | os.O_RDWR, 0o444) as fd:
                os.write(fd, b"its maker may write")
            assert errno_of(os.mknod, top / "device", stat.S_IFCHR | 0o666, 0x103) == "EPERM"

        in_child(make, uid=NOBODY)
        for name in ("f", "d", "l", "p", "readonly"):
            st = os.lstat(top / name)
            assert (st.st_uid, st.st_gid) == (NOBODY, NOBODY), name


def test_setuid_bits_are_cleared(others_mount: Mounted) -> None:
    with directory_in(others_mount.mountpoint) as top:
        top.chmod(0o777)

        def mode(name: str) -> int:
            return stat.S_IMODE(os.stat(top / name).st_mode)

        for name in ("written", "truncated", "opened", "by-root", "not-executable", "owned"):
            write_file(top / name, b"program", 0o6777)
        (top / "not-executable").chmod(0o2767)

        def other() -> None:
            with opened(top / "written", os.O_WRONLY) as fd:
                os.write(fd, b"P")
            os.truncate(top / "truncated", 3)
            os.close(os.open(top / "opened", os.O_WRONLY | os.O_TRUNC))
            with opened(top / "not-executable", os.O_WRONLY) as fd:
                os.write(fd, b"P")

        in_child(other, uid=NOBODY)
        assert mode("written") == 0o777
        assert mode("truncated") == 0o777
        assert mode("opened") == 0o777
        assert mode("not-executable") == 0o2767, "setgid without execute is not a privilege"
        with opened(top / "by-root", os.O_WRONLY) as fd:
            os.write(fd, b"P")
        assert mode("by-root") == 0o6777, "root (CAP_FSETID) keeps them"
        os.chown(top / "owned", NOBODY, NOBODY)
        assert mode("owned") == 0o777
        os.chmod(top / "owned", 0o6755)
        in_child(lambda: os.chmod(top / "owned", 0o6755), uid=NOBODY)
        assert mode("owned") == 0o6755
        os.chown(top / "owned", NOBODY, 7777)
        os.chmod(top / "owned", 0o755)
        in_child(lambda: os.chmod(top / "owned", 0o2755), uid=NOBODY)
        assert mode("owned") == 0o755, "no setgid for a group that the caller is not in"


def test_setuid_program_runs_as_its_owner(others_mount: Mounted) -> None:
    with directory_in(others_mount.mountpoint) as top:
        top.chmod(0o755)
        program = top / "id"
        subprocess.run(["cp", "--preserve=mode", "/usr/bin/id", program], check=True)
        os.chown(program, 0, 0)
        program.chmod(0o4755)

        def other() -> None:
            out = subprocess.run([program, "-u"], capture_output=True, check=True, text=True)
            assert out.stdout == "0\n"

        in_child(other, uid=NOBODY)


def test_setgid_directories_pass_their_group_on(others_mount: Mounted) -> None:
    with directory_in(others_mount.mountpoint) as top:
        top.chmod(0o755)
        directory = top / "d"
        directory.mkdir()
        os.chown(directory, 0, 4242)
        directory.chmod(0o2777)

        def other() -> None:
            os.umask(0o002)
            write_file(directory / "f", b"")
            os.mkdir(directory / "sub")
            os.mkdir(directory / "sub/sub")
            os.symlink("f", directory / "l")
            write_file(directory / "suid", b"", 0o2755)

        in_child(other, uid=NOBODY)
        for name in ("f", "sub", "sub/sub", "l"):
            st = os.lstat(directory / name)
            assert (st.st_uid, st.st_gid) == (NOBODY, 4242), name
        assert stat.S_IMODE(os.stat(directory / "sub").st_mode) == 0o2775
        assert stat.S_IMODE(os.stat(directory / "sub/sub").st_mode) == 0o2775
        assert stat.S_IMODE(os.stat(directory / "f").st_mode) & stat.S_ISGID == 0


def test_sticky_directories_protect_the_files_of_others(others_mount: Mounted) -> None:
    with directory_in(others_mount.mountpoint) as top:
        directory = top / "d"
        top.chmod(0o755)
        directory.mkdir()
        directory.chmod(0o1777)
        write_file(directory / "roots", b"")

        def other() -> None:
            assert errno_of(os.unlink, directory / "roots") in ("EPERM", "EACCES")
            assert errno_of(os.rename, directory / "roots", directory / "x") in ("EPERM", "EACCES")
            write_file(directory / "mine", b"")
            assert errno_of(os.rename, directory / "mine", directory / "roots") in (
                "EPERM",
                "EACCES",
            )
            os.unlink(directory / "mine")

        in_child(other, uid=NOBODY)


def test_a_mount_without_allow_other_is_closed_to_others(open_directory: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("acting as another user needs root")
    from tests.support import mounting

    base = open_directory / "closed"
    base.mkdir(mode=0o777)
    write_file(base / "f", b"", 0o666)
    with mounting.mounted(base):
        in_child(
            lambda: _expect(errno_of(os.stat, base / "f"), errno.errorcode[errno.EACCES]),
            uid=NOBODY,
        )
