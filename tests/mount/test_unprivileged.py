"""A mount of an ordinary user: the same semantics, checkpoints and restores."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mount import test_browsing, test_checkpoint, test_restore
from tests.mount.calls import NOBODY, errno_of, in_child, write_file
from tests.mount.mounts import Interpreter, interpreter_for, need_users_mounts, shared_mount
from tests.mount.scenarios import ANYONE, Scenario
from tests.mount.states import assert_same, fill_base, make_first, make_second, state_of
from tests.support.mounting import Mounted

MIB = 1 << 20


@pytest.fixture(scope="module")
def users_python(open_directory: Path) -> Iterator[Interpreter]:
    need_users_mounts()
    with interpreter_for(NOBODY, open_directory) as interpreter:
        yield interpreter


@pytest.fixture(scope="module")
def users_mount(open_directory: Path, users_python: Interpreter) -> Iterator[Mounted]:
    """A mount made by the user nobody, for nobody else."""
    with _mount_in(open_directory / "home", users_python) as mounted:
        yield mounted


@contextlib.contextmanager
def _mount_in(home: Path, python: Interpreter) -> Iterator[Mounted]:
    """Such a mount, in a directory that is made for the user."""
    base = home / "base"
    base.mkdir(parents=True)
    fill_base(base)
    for directory, names, files in os.walk(home):
        for name in [".", *names, *files]:
            os.chown(os.path.join(directory, name), NOBODY, NOBODY, follow_symlinks=False)
    with shared_mount(base, uid=NOBODY, interpreter=python) as mounted:
        yield mounted


@pytest.fixture
def as_user(users_mount: Mounted, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """as_user(fn, ...): run it as the user, with the mount first, in an empty mount."""

    def run(fn: Callable[..., Any], *args: Any) -> None:
        def body() -> None:
            os.umask(0o022)
            _empty(users_mount.mountpoint)
            fn(users_mount, *args)
            _empty(users_mount.mountpoint)

        in_child(body, uid=NOBODY)

    yield run
    assert " WARNING " not in users_mount.log(), users_mount.log()


def _empty(top: Path) -> None:
    for name in os.listdir(top):
        path = top / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            os.unlink(path)


def test_the_base_came_in_as_the_user_sees_it(
    open_directory: Path, users_python: Interpreter
) -> None:
    def look() -> None:
        assert sorted(os.listdir(top)) == ["base0", "base1", "base2"]
        assert os.stat(top / "base0/one").st_uid == NOBODY
        assert os.stat(top / "base0/one").st_nlink == 2
        assert (top / "base1/deep/deeper/leaf").read_bytes() == b"leaf 1"

    with _mount_in(open_directory / "untouched", users_python) as mounted:
        top = mounted.mountpoint
        in_child(look, uid=NOBODY)


def test_closed_to_others_even_to_root(users_mount: Mounted) -> None:
    assert errno_of(os.listdir, users_mount.mountpoint) == "EACCES"
    in_child(lambda: _expect_closed(users_mount.mountpoint), uid=NOBODY - 1)


def _expect_closed(top: Path) -> None:
    assert errno_of(os.listdir, top) == "EACCES"


def test_daemon_runs_as_the_user(users_mount: Mounted) -> None:
    status = Path(f"/proc/{users_mount.pid}/status").read_text()
    assert f"Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}\n" in status
    assert os.stat(users_mount.store).st_uid == NOBODY
    assert stat.S_IMODE(os.stat(users_mount.store).st_mode) == 0o700


@pytest.mark.parametrize("scenario", ANYONE, ids=lambda fn: fn.__name__)
def test_posix(scenario: Scenario, as_user: Callable[..., None]) -> None:
    def run(mounted: Mounted) -> None:
        top = mounted.mountpoint / "scenario"
        top.mkdir()
        scenario(top)

    as_user(run)


def _whole_tree(mounted: Mounted) -> None:
    top = mounted.mountpoint
    fill_base(top)
    make_first(top)
    first, checkpoint = state_of(top), mounted.checkpoint()
    make_second(top)
    second = state_of(top)
    for _ in range(3):
        mounted.restore(checkpoint)
        assert_same(state_of(top), first)
        mounted.call("undo")
        assert_same(state_of(top), second)


def _checkpoints_as_directories(mounted: Mounted) -> None:
    fill_base(mounted.mountpoint)
    test_browsing.test_as_it_was_while_the_head_changes(mounted)


def _held_in_a_closed_directory(mounted: Mounted) -> None:
    """The daemon has no more rights than its user, and corrects the file all the same."""
    top = mounted.mountpoint
    (top / "d").mkdir()
    write_file(top / "d/f", b"1" * 1000, 0o400)
    os.utime(top / "d/f", ns=(1, 1))
    (top / "d").chmod(0)
    checkpoint = mounted.checkpoint()
    (top / "d").chmod(0o700)
    os.chmod(top / "d/f", 0o600)
    fd = os.open(top / "d/f", os.O_RDWR)
    os.pwrite(fd, b"2" * 5000, 0)
    mounted.restore(checkpoint)
    st = os.fstat(fd)
    assert (st.st_size, st.st_mtime_ns, stat.S_IMODE(st.st_mode)) == (1000, 1, 0o400)
    assert os.pread(fd, 5000, 0) == b"1" * 1000
    assert test_restore.changes(mounted) == (0, 0, 0)
    os.close(fd)
    (top / "d").chmod(0o700)


RESTORES: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    (_whole_tree, ()),
    (_checkpoints_as_directories, ()),
    (test_browsing.test_nothing_can_be_changed, ()),
    (test_browsing.test_the_name_can_be_neither_made_nor_removed, ()),
    (_held_in_a_closed_directory, ()),
    (test_checkpoint.test_an_open_writer, (20 * MIB,)),
    (test_checkpoint.test_many_open_writers, ()),
    (test_checkpoint.test_a_shared_mapping_without_msync, ()),
    (test_restore.test_unchanged_files_keep_their_pages, ()),
    (test_restore.test_open_file_shows_the_restored_content, (100_000, 300_000, os.O_RDONLY)),
    (test_restore.test_open_file_shows_the_restored_content, (300_000, 100_000, os.O_RDWR)),
    (test_restore.test_open_file_shows_restored_mode_and_owner, ()),
    (test_restore.test_unflushed_writes_go_to_the_rescue_and_never_come_back, ()),
    (test_restore.test_open_file_with_a_forbidding_mode, (0o444,)),
    (test_restore.test_open_file_with_a_forbidding_mode, (0o000,)),
    (test_restore.test_inotify_watch_holds_an_inode, ()),
    (test_restore.test_open_file_that_the_restored_state_does_not_have, (False,)),
    (test_restore.test_unlinked_open_file_comes_back, ()),
    (test_restore.test_shared_mapping_shows_the_restored_bytes, (True,)),
    (test_restore.test_removed_working_directory_comes_back, ()),
    (test_restore.test_names_become_other_things, ()),
    (test_restore.test_nothing_changes_after_a_restore, ()),
]


@pytest.mark.parametrize(
    ("fn", "args"), RESTORES, ids=[f"{n}-{fn.__name__}" for n, (fn, _) in enumerate(RESTORES)]
)
def test_restores(
    as_user: Callable[..., None], fn: Callable[..., None], args: tuple[Any, ...]
) -> None:
    as_user(fn, *args)
