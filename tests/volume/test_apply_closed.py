"""Apply by an ordinary user into directories of their own that are closed for writing."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import cowfs.service.verify  # noqa: F401 - the child process may not be able to find modules
from cowfs.daemon.process import finish_apply
from cowfs.service.apply import Applied
from cowfs.store.steps import STEPS, arm
from tests.mount.calls import NOBODY, in_child, write_file
from tests.support.volumes import START, Rig
from tests.volume.test_apply import check, run


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the user's who makes the apply: nobody, where root runs the tests."""
    directory = Path(tempfile.mkdtemp(prefix="cowfs-test-"))
    if os.geteuid() == 0:
        os.chown(directory, NOBODY, NOBODY)
    yield directory
    waiting = [directory]
    while waiting:
        at = waiting.pop()
        at.chmod(0o700)
        waiting += [path for path in at.iterdir() if path.is_dir() and not path.is_symlink()]
    shutil.rmtree(directory)


def by_a_user(body: Callable[[], None]) -> None:
    in_child(body, uid=NOBODY if os.geteuid() == 0 else None)


def make_base(base: Path) -> None:
    """Directories with files and sub-directories, all of mode 0555, the top too."""
    for name in ("changes", "goes", "moves"):
        (base / name / "sub").mkdir(parents=True)
        write_file(base / name / "file", name.encode(), 0o444)
        write_file(base / name / "sub/x", b"x", 0o444)
        for closed in (f"{name}/sub", name):
            (base / closed).chmod(0o555)
    base.chmod(0o555)


@pytest.mark.parametrize("opened", [False, True])
def test_directories_closed_for_writing(place: Path, opened: bool) -> None:
    """The owner may change their mode, so that they do not stop an apply; afterwards they have
    the mode that they have in the workspace."""

    def body() -> None:
        base = place / "base"
        base.mkdir()
        make_base(base)
        rig = Rig(place / "store", base)
        create = partial(rig.create, uid=os.geteuid(), gid=os.getegid())
        if opened:
            for name in (b"", b"changes", b"moves"):
                rig.chmod(name, 0o755)
        rig.save(b"changes/file", b"written")
        create(b"changes/new", b"new")
        create(b"changes/directory", mode=stat.S_IFDIR | 0o555)
        create(b"changes/directory/in", b"in")
        create(b"top", b"top")
        rig.unlink(b"changes/sub/x")
        rig.remove_tree(b"goes")
        rig.rename(b"moves", b"changes/moved")
        check(rig, run(rig))
        assert stat.S_IMODE(os.stat(base).st_mode) == (0o755 if opened else 0o555)
        rig.reopen()
        check(rig, run(rig))
        assert rig.problems() == []
        rig.finish()

    by_a_user(body)


CLOSED = [0o000, 0o100, 0o200, 0o300, 0o400, 0o600, 0o555]


def make_plain(base: Path) -> None:
    """Directories with files, below each other, of which all content is in the base only."""
    for name in ("closes", "closed/below/deep", "opens"):
        (base / name / "sub").mkdir(parents=True)
        write_file(base / name / "file", name.encode(), 0o644)
        write_file(base / name / "sub/x", b"x" * 70_000, 0o644)


def modes(base: Path, below: str = ".") -> dict[str, int]:
    """The modes of all directories, opened in turn to look."""
    top = base / below
    mode = stat.S_IMODE(top.lstat().st_mode)
    found = {below: mode}
    top.chmod(0o700)
    for path in top.iterdir():
        if path.is_dir():
            found |= modes(base, str(path.relative_to(base)))
    top.chmod(mode)
    return found


def wanted_modes(rig: Rig) -> dict[str, int]:
    return {
        os.fsdecode(path) or ".": stat.S_IMODE(inode.mode)
        for path, inode in rig.paths().items()
        if inode.is_dir
    }


@pytest.mark.parametrize("mode", CLOSED, ids=oct)
def test_directories_that_keep_their_owner_out(place: Path, mode: int) -> None:
    """They are applied into, in this and in later applies, and in the end have their modes. What
    only the base had of them is in the store before."""

    def body() -> None:
        base = place / "base"
        base.mkdir()
        make_plain(base)
        rig = Rig(place / "store", base)
        start = rig.tree()
        create = partial(rig.create, uid=os.geteuid(), gid=os.getegid())
        create(b"new", mode=stat.S_IFDIR | mode)
        create(b"new/file", b"new")
        for name in (b"closed", b"closed/below", b"closes", b"closes/sub"):
            rig.chmod(name, mode)
        rig.save(b"closed/below/deep/file", b"written")
        rig.rename(b"opens/file", b"closes/sub/moved")
        tree = rig.tree()
        assert run(rig).problems == []
        assert modes(base) == wanted_modes(rig)
        rig.reopen()
        assert rig.tree() == tree  # also what was in the base only
        create(b"closes/sub/second", b"2")
        rig.unlink(b"new/file")
        rig.unlink(b"closed/below/deep/sub/x")
        rig.rename(b"closed/below", b"moved")
        rig.chmod(b"closes", 0o700)
        tree = rig.tree()
        assert run(rig).problems == []
        assert modes(base) == wanted_modes(rig)
        rig.reopen()
        assert rig.tree() == tree
        rig.restore(START)
        assert run(rig).problems == []
        check(rig)
        assert {path: facts.content for path, facts in rig.tree().items()} == {
            path: facts.content for path, facts in start.items()
        }
        rig.finish()

    by_a_user(body)


@pytest.mark.parametrize("step", [step for step in STEPS if step.startswith("apply.")])
def test_an_interrupted_apply_into_closed_directories(place: Path, step: str) -> None:
    """Whatever step it came to: the next one goes on, and closes what has to be closed."""

    def body() -> None:
        base = place / "base"
        base.mkdir()
        make_plain(base)
        rig = Rig(place / "store", base)
        rig.tree()
        rig.chmod(b"closes", 0)
        rig.chmod(b"opens", 0o400)
        rig.chmod(b"closed", 0o600)
        rig.chmod(b"closes/file", 0)
        rig.save(b"closed/below/deep/file", b"written")
        rig.rename(b"opens/file", b"closes/sub/moved")
        tree = rig.tree()
        arm(step, 1, _stop)
        with contextlib.suppress(_StoppedError):
            run(rig)
        arm("")
        rig.crash()
        rig.start()
        finish_apply(rig.volume)
        assert run(rig).problems == []
        assert modes(base) == wanted_modes(rig)
        assert rig.tree() == tree
        rig.finish()

    by_a_user(body)


class _StoppedError(BaseException):
    """Instead of the death of the process."""


def _stop() -> None:
    raise _StoppedError


@pytest.mark.parametrize("mode", [0o000, 0o200, 0o077])
def test_files_that_keep_their_owner_out(place: Path, mode: int) -> None:
    """What only the base had is in the store before the file is closed; a closed file is compared,
    replaced, removed and opened again by later applies."""

    def body() -> None:
        base = place / "base"
        base.mkdir()
        names = [b"stays", b"written", b"goes", b"opened", b"same size"]
        for name in names:
            write_file(base / os.fsdecode(name), name * 1000, 0o644)
        rig = Rig(place / "store", base)
        for name in names:
            rig.chmod(name, mode)
        check_modes(rig, run(rig))
        rig.reopen()
        for name in names:
            assert rig.read(name) == name * 1000
        rig.save(b"written", b"other")
        rig.save(b"same size", b"other sum" * 1000)
        rig.unlink(b"goes")
        rig.chmod(b"opened", 0o644)
        check_modes(rig, run(rig))
        rig.reopen()
        rig.restore(START)
        check(rig, run(rig))
        assert rig.read(b"goes") == b"goes" * 1000
        assert rig.problems() == []
        rig.finish()

    by_a_user(body)


def check_modes(rig: Rig, result: Applied) -> None:
    assert result.problems == []
    assert rig.base is not None
    for path, inode in rig.paths().items():
        found = os.lstat(os.fsencode(rig.base) + b"/" + path)
        assert (found.st_mode, found.st_mtime_ns) == (inode.mode, inode.mtime)
        assert inode.is_dir or found.st_size == inode.size


def test_closed_from_the_beginning(place: Path) -> None:
    """A file that the base's owner cannot read: it is saved before it is removed all the same."""

    def body() -> None:
        base = place / "base"
        (base / "d").mkdir(parents=True)
        write_file(base / "d/f", b"hidden", 0)
        write_file(base / "g", b"hidden, too", 0o200)
        rig = Rig(place / "store", base)
        rig.paths()
        rig.unlink(b"d/f")
        rig.save(b"g", b"seen")
        assert run(rig).problems == []
        rig.restore(START)
        assert rig.read(b"d/f") == b"hidden"
        assert rig.read(b"g") == b"hidden, too"
        assert run(rig).problems == []
        rig.finish()

    by_a_user(body)


def test_what_cannot_be_read_is_not_removed(place: Path) -> None:
    """A file of another user, in a directory of our own: its content cannot be saved before."""
    if os.geteuid() != 0:
        pytest.skip("only root makes a file of another user")
    base = place / "base"
    base.mkdir()
    for name in ("goes", "written"):
        write_file(base / name, b"theirs", 0o600)
    os.chown(base, NOBODY, NOBODY)

    def body() -> None:
        rig = Rig(place / "store", base)
        rig.unlink(b"goes")
        rig.unlink(b"written")
        rig.create(b"written", b"ours", uid=NOBODY, gid=NOBODY)
        result = run(rig)
        assert [row["path"] for row in result.problems] == ["goes", "written"]
        assert "cannot be read" in result.problems[0]["detail"]
        assert sorted(os.listdir(base)) == ["goes", "written", "written.outside-1"]
        assert (base / "written").read_bytes() == b"ours"
        rig.finish()

    by_a_user(body)
    assert (base / "goes").read_bytes() == (base / "written.outside-1").read_bytes() == b"theirs"
