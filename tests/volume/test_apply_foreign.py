"""Apply by an ordinary user in a directory with things of others, as containers and colleagues
leave them: what that user may do there in a plain directory is done, the rest is said."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import cowfs.service.verify  # noqa: F401 - the child process may not be able to find modules
from tests.mount.calls import NOBODY, in_child, write_file
from tests.support.volumes import START, Rig
from tests.volume.test_apply import run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes things of another user")
OTHER_USER = 12345


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the user nobody."""
    directory = Path(tempfile.mkdtemp(prefix="cowfs-test-"))
    os.chown(directory, NOBODY, NOBODY)
    yield directory
    shutil.rmtree(directory)


def test_names_of_things_of_another_user(place: Path) -> None:
    """rename(2) asks for the directories only, but link(2) for the file (protected_hardlinks of
    proc_sys_fs(5)), and for a directory that gets another `..`."""
    base = place / "base"
    (base / "mine").mkdir(parents=True)
    for name in ("open", "closed", "swapped", "replaces", "linked"):
        write_file(base / name, name.encode() * 1000, 0o600 if name == "closed" else 0o644)
    os.link(base / "linked", base / "linked too")
    for name in ("directory", "closed directory"):
        (base / name).mkdir()
        write_file(base / name / "file", b"theirs")
    (base / "closed directory").chmod(0o700)
    for path in base.rglob("*"):
        os.chown(path, OTHER_USER, OTHER_USER)
    for path in (base, base / "mine"):
        os.chown(path, NOBODY, NOBODY)
    write_file(base / "replaced", b"mine")
    write_file(base / "swap", b"mine, too")
    for name in ("replaced", "swap"):
        os.chown(base / name, NOBODY, NOBODY)
    numbers = {path.name: path.lstat().st_ino for path in base.iterdir()}

    def body() -> None:
        rig = Rig(place / "store", base)
        for directory in (b"", b"mine", b"directory"):
            rig.ls(directory)
        rig.rename(b"open", b"mine/opened")
        rig.rename(b"closed", b"still closed")
        rig.rename(b"swapped", b"swap", 2)
        rig.rename(b"replaces", b"replaced")
        rig.rename(b"linked", b"mine/linked")
        rig.rename(b"directory", b"directory of theirs")
        rig.rename(b"closed directory", b"their closed directory")
        assert run(rig).problems == []
        now = {
            "mine/opened": "open",
            "still closed": "closed",
            "swap": "swapped",
            "swapped": "swap",
            "replaced": "replaces",
            "mine/linked": "linked",
            "linked too": "linked",
            "directory of theirs": "directory",
            "their closed directory": "closed directory",
        }
        assert {new: (base / new).lstat().st_ino for new in now} == {
            new: numbers[old] for new, old in now.items()
        }
        assert sorted(os.listdir(base)) == sorted({new.split("/")[0] for new in now} | {"mine"})
        rig.reopen()
        assert rig.read(b"mine/opened") == b"open" * 1000
        assert rig.read(b"directory of theirs/file") == b"theirs"
        assert {kind for kind, _ in rig.problems()} <= {"unreadable"}
        rig.restore(START)
        result = run(rig)
        assert [row["path"] for row in result.problems] == []
        assert {path.name: path.lstat().st_ino for path in base.iterdir()} == {
            **numbers,
            "replaced": (base / "replaced").lstat().st_ino,
        }
        assert (base / "replaced").read_bytes() == b"mine"
        rig.finish()

    in_child(body, uid=NOBODY)


def test_both_names_of_a_file_of_another_user(place: Path) -> None:
    """The kernel gives such a file no further name: the second one is a file of its own, and that
    is said."""
    base = place / "base"
    base.mkdir()
    write_file(base / "a", b"theirs", 0o644)
    os.link(base / "a", base / "b")
    os.chown(base / "a", OTHER_USER, OTHER_USER)
    os.chown(base, NOBODY, NOBODY)

    def body() -> None:
        rig = Rig(place / "store", base)
        rig.paths()
        rig.rename(b"a", b"c")
        rig.rename(b"b", b"d")
        paths = {row["path"] for row in run(rig).problems}
        assert paths
        assert paths <= {"c", "d"}
        assert sorted(os.listdir(base)) == ["c", "d"]
        assert (base / "c").read_bytes() == (base / "d").read_bytes() == b"theirs"
        rig.finish()

    in_child(body, uid=NOBODY)


@pytest.mark.parametrize("mode", [0o775, 0o777, 0o2775], ids=oct)
def test_a_directory_of_another_user_that_all_may_write(place: Path, mode: int) -> None:
    """As a directory of a group: the base and one in it. Times of a directory are its owner's to
    set; that they are others is said, and nothing else is missing."""
    base = place / "base"
    (base / "theirs").mkdir(parents=True)
    for name in ("written", "goes", "moves"):
        write_file(base / "theirs" / name, b"theirs", 0o664)
    for path in [base, *base.rglob("*")]:
        os.chown(path, OTHER_USER, NOBODY)
    for path in (base, base / "theirs"):
        path.chmod(mode)

    def body() -> None:
        rig = Rig(place / "store", base)
        rig.paths()
        create = partial(rig.create, uid=os.geteuid(), gid=os.getegid())
        create(b"new", b"new")
        create(b"theirs/new", b"new")
        create(b"theirs/mine", mode=stat.S_IFDIR | 0o755)
        rig.save(b"theirs/written", b"by me")
        rig.unlink(b"theirs/goes")
        rig.rename(b"theirs/moves", b"moved")
        problems = {(row["path"], row["detail"].split(" ")[0]) for row in run(rig).problems}
        assert problems == {(".", "its"), ("theirs", "its"), ("theirs/written", "owner")}
        assert sorted(os.listdir(base)) == ["moved", "new", "theirs"]
        assert sorted(os.listdir(base / "theirs")) == ["mine", "new", "written"]
        assert (base / "theirs/written").read_bytes() == b"by me"
        assert (base / "moved").read_bytes() == b"theirs"
        tree = rig.tree()
        rig.reopen()
        assert {path: facts.content for path, facts in rig.tree().items()} == {
            path: facts.content for path, facts in tree.items()
        }
        rig.restore(START)
        run(rig)
        assert sorted(os.listdir(base / "theirs")) == ["goes", "moves", "written"]
        assert {path.read_bytes() for path in (base / "theirs").iterdir()} == {b"theirs"}
        rig.finish()

    in_child(body, uid=NOBODY)
