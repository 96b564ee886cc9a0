"""An apply changes the base and nothing else: not where symbolic links lead, not other names of its
files, whatever others do to it meanwhile."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.daemon.process import finish_apply
from cowfs.errors import ApplyConflictError
from cowfs.store.steps import arm
from cowfs.volume import attributes
from cowfs.volume.base import STAGING
from tests.support.listing import listing
from tests.support.racing import Outside, swapping
from tests.support.volumes import OTHER, START, Rig
from tests.volume.test_apply import base_tree, check, run, shown

OpenRig = Callable[[], Rig]
ROUNDS = 15

FILES = ["replaced", "deleted", "chmod", "chown", "times", "xattr", "linked", "moved", "grown"]
DIRECTORIES = ["kept", "goes", "moves"]
NEW = ["created", "link", "new link", "fifo", "made", "renamed"]


def make_directory(directory: Path) -> None:
    """What the changes below work on."""
    directory.mkdir()
    for name in FILES:
        (directory / name).write_bytes(b"base " + name.encode())
    os.setxattr(directory / "xattr", "user.goes", b"1")
    for name in DIRECTORIES:
        (directory / name).mkdir()
        (directory / name / "within").write_bytes(b"base")


@pytest.fixture
def outside(fast_path: Path) -> Outside:
    """Every name that the changes use leads to something precious there."""
    return Outside(fast_path / "outside", FILES + NEW, DIRECTORIES)


def change(rig: Rig, top: bytes = b"d/") -> None:
    """Every primitive that an apply has, in one directory."""
    rig.create(top + b"created", b"new")
    rig.save(top + b"replaced", b"other content")
    rig.unlink(top + b"deleted")
    rig.chmod(top + b"chmod", 0o604)
    attributes.set_attributes(rig.view, rig.at(top + b"chown"), uid=OTHER[0], gid=OTHER[1])
    attributes.set_attributes(rig.view, rig.at(top + b"times"), atime=5, mtime=5)
    rig.setxattr(top + b"xattr", b"user.comes", b"2")
    attributes.remove_xattr(rig.view, rig.at(top + b"xattr"), b"user.goes")
    rig.link(top + b"linked", top + b"new link")
    rig.rename(top + b"moved", top + b"renamed")
    rig.truncate(top + b"grown", 100_000)
    rig.symlink(b"nowhere", top + b"link")
    rig.create(top + b"fifo", mode=stat.S_IFIFO | 0o600)
    rig.mkdir(top + b"made", 0o711)
    rig.create(top + b"made/within", b"new")
    rig.chmod(top + b"kept", 0o701)
    rig.remove_tree(top + b"goes")
    rig.rename(top + b"moves", top + b"kept/moved")


def run_interrupted(rig: Rig) -> None:
    """An apply that stops when it is about to begin with the base."""
    arm("apply.marked", 1, _stop)
    with pytest.raises(_StoppedError):
        run(rig)
    arm("")


def race(top: Path, name: str, make_trap: Callable[[Path], object], *, resumed: bool) -> int:
    """One apply, during which `name` in the base and a trap change places; how often they did."""
    base, trap = top / "base", top / "trap"
    base.mkdir(parents=True)
    make_directory(base / "d")
    make_trap(trap)
    rig = Rig(top / "store", base)
    rig.tree()
    change(rig)
    if resumed:
        run_interrupted(rig)
    with swapping(base, name, trap) as count:
        try:
            run(rig)
        except ApplyConflictError:
            pass  # what is in the way may stop an apply
    rig.finish(check=False)  # what was swapped in was adopted, in the middle of it
    return count[0]


class _StoppedError(BaseException):
    """Instead of the death of the process."""


def _stop() -> None:
    raise _StoppedError


@pytest.mark.parametrize("resumed", [False, True])
def test_a_directory_swapped_for_a_link(fast_path: Path, outside: Outside, resumed: bool) -> None:
    swaps = 0
    for number in range(ROUNDS):
        top = fast_path / str(number)
        swaps += race(top, "d", lambda trap: trap.symlink_to(outside.top), resumed=resumed)
        outside.assert_untouched()
    assert swaps > ROUNDS


@pytest.mark.parametrize("kind", ["link", "hard link"])
@pytest.mark.parametrize("name", [*FILES[2:6], "replaced", "created", "fifo"])
def test_a_file_swapped_for_a_link(fast_path: Path, outside: Outside, name: str, kind: str) -> None:
    """A hard link is a name in the base like others: it may go, but nothing is changed by it."""
    precious = outside.top / name

    def make(trap: Path) -> None:
        if kind == "link":
            trap.symlink_to(precious)
        else:
            os.link(precious, trap)

    for number in range(5):
        race(fast_path / str(number), f"d/{name}", make, resumed=bool(number % 2))
        outside.assert_untouched(links=kind == "link")


# -- hard links that are there all the time -----------------------------------------------------


def test_other_names_of_its_files_see_nothing(
    open_rig: OpenRig, base: Path, tmp_path: Path
) -> None:
    """What has a name outside is replaced by a file of its own when anything in it changes."""
    make_directory(base / "d")
    os.mkfifo(base / "d/pipe")
    (tmp_path / "outside").mkdir()
    for name in [*FILES, "pipe"]:
        os.link(base / "d" / name, tmp_path / "outside" / name)
    before = listing(tmp_path / "outside")
    rig = open_rig()
    rig.tree()
    change(rig)
    rig.chmod(b"d/pipe", 0o601)
    tree = rig.tree()
    check(rig, run(rig))
    after = listing(tmp_path / "outside")
    kept = {path: entry._replace(nlink=0) for path, entry in after.items()}
    assert kept == {path: entry._replace(nlink=0) for path, entry in before.items()}
    for name in ("linked", "moved"):  # of these only names changed
        assert after[name].nlink == before[name].nlink + (name == "linked")
    rig.reopen()
    assert rig.tree() == tree
    assert run(rig).problems == []
    assert rig.problems() == []
    rig.restore(START)
    check(rig, run(rig))
    assert {p: e._replace(nlink=0) for p, e in listing(tmp_path / "outside").items()} == kept


def test_a_file_with_a_name_outside_and_several_here(
    open_rig: OpenRig, base: Path, tmp_path: Path
) -> None:
    (base / "a").write_bytes(b"x" * 70_000)
    os.link(base / "a", base / "b")
    os.link(base / "a", tmp_path / "outside")
    rig = open_rig()
    rig.tree()
    rig.chmod(b"a", 0o600)
    rig.link(b"b", b"c")
    check(rig, run(rig))
    assert os.stat(base / "c").st_nlink == 3
    assert stat.S_IMODE(os.stat(tmp_path / "outside").st_mode) == 0o644
    assert (tmp_path / "outside").read_bytes() == b"x" * 70_000


# -- the staging directory ----------------------------------------------------------------------


@pytest.mark.parametrize("planted", ["link", "dangling", "file", "open", "full", "theirs"])
@pytest.mark.parametrize("resumed", [False, True])
def test_something_under_the_name_of_the_staging_directory(
    open_rig: OpenRig, base: Path, outside: Outside, planted: str, resumed: bool
) -> None:
    """It is kept aside, and nothing in it is used; but for what an interrupted run left."""
    if planted == "theirs" and os.geteuid() != 0:
        pytest.skip("only root makes a directory of another user")
    make_directory(base / "d")
    rig = open_rig()
    rig.tree()
    change(rig)
    if resumed:
        run_interrupted(rig)
    staging = base / os.fsdecode(STAGING)
    if planted == "link":
        staging.symlink_to(outside.top)
    elif planted == "dangling":
        staging.symlink_to("nothing")
    elif planted == "file":
        staging.write_bytes(b"kept")
    else:
        staging.mkdir(0o755 if planted == "open" else 0o700)
        for name in (b"d/moved", b"d/created", b"d/replaced"):
            (staging / str((rig.find(name) or rig.at(b"d/renamed")).ino)).write_bytes(b"planted")
        if planted == "theirs":
            os.chown(staging, 12345, 12345)
    result = run(rig)
    outside.assert_untouched()
    aside = base / (os.fsdecode(STAGING) + ".outside-1")
    if planted == "full" and resumed:
        assert not os.path.lexists(aside)  # as if the interrupted run had made them
        return
    assert [row["path"] for row in result.problems] == [os.fsdecode(STAGING)]
    assert os.path.lexists(aside)
    assert not os.path.lexists(staging)
    wanted, found = shown(rig.tree()), base_tree(rig)
    for path in list(found):
        if path.startswith(STAGING):
            del found[path]
    assert {p: row for p, row in found.items() if p} == {p: r for p, r in wanted.items() if p}


def test_what_a_finished_apply_could_not_do_is_told(open_rig: OpenRig, base: Path) -> None:
    """Nobody asked for it, so `status` tells."""
    rig = open_rig()
    rig.create(b"f", b"new")
    arm("apply.marked", 1, _stop)
    with pytest.raises(_StoppedError):
        run(rig)
    arm("")
    (base / os.fsdecode(STAGING)).write_bytes(b"planted")
    rig.crash()
    rig.start()
    finish_apply(rig.volume)
    assert rig.problems() == [("apply", os.fsdecode(STAGING))]
    assert (base / "f").read_bytes() == b"new"


@pytest.mark.parametrize("directory", [False, True])
def test_the_workspace_has_that_name_itself(open_rig: OpenRig, base: Path, directory: bool) -> None:
    """It stays in the store, which is said; all else is applied."""
    rig = open_rig()
    if directory:
        rig.mkdir(STAGING)
        rig.create(STAGING + b"/2", b"mine")
        rig.mkdir(STAGING + b"/below")
        rig.create(STAGING + b"/below/3", b"mine")
    else:
        rig.create(STAGING, b"mine")
    rig.create(b"other", b"other")
    tree = rig.tree()
    for _ in range(2):
        result = run(rig)
        assert [row["path"] for row in result.problems] == [os.fsdecode(STAGING)][: 1 - _]
        assert os.listdir(base) == ["other"]
        rig.reopen()
        assert rig.tree() == tree
    rig.remove_tree(STAGING)
    check(rig, run(rig))


NAMES = [
    b"..x",
    b"...",
    b".. ",
    b" ",
    b"-rf",
    b"\n",
    b"a\nb",
    b"\xff\xfe",
    b"%s%n",
    b"~",
    b"*",
    b"$(id)",
    b"x" * 255,
]


def test_names_that_look_like_something_else(open_rig: OpenRig, base: Path) -> None:
    rig = open_rig()
    for name in NAMES:
        rig.mkdir(name)
        for below in NAMES:
            rig.create(name + b"/" + below, below)
    check(rig, run(rig))
    for name in NAMES:
        rig.rename(name, name[:200] + b".moved")
    check(rig, run(rig))
    rig.restore(START)
    check(rig, run(rig))
    assert os.listdir(base) == []
