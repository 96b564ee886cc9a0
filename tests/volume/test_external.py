"""The base changed from outside: adopted or kept, and always reported (contracts 6 and 7)."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.format.records import Counts
from cowfs.service.apply import apply
from cowfs.service.selectors import all_checkpoints
from cowfs.types import BLOCK_SIZE
from cowfs.volume import attributes, posix, sealing
from tests.support.steps import Worker
from tests.support.volumes import AUTHOR, START, Facts, Rig, errno_of, usable
from tests.volume.test_history import fill_base

B = BLOCK_SIZE
OpenRig = Callable[[], Rig]


def next_life(rig: Rig) -> None:
    """End, and let the caller change the base."""
    rig.close()


def seal(rig: Rig, path: bytes) -> None:
    sealing.seal(rig.view, rig.at(path).content)
    rig.volume.sync()


def steady(rig: Rig) -> None:
    """What was adopted is the same once it is committed, in the next life, and for `status`."""
    tree = rig.tree()
    rig.volume.sync()
    rig.evict()
    assert rig.volume.base is not None
    rig.volume.base.forget()
    assert rig.tree() == tree
    rig.reopen()
    before = rig.record_counts()
    assert rig.tree() == tree
    assert rig.problems() == []
    assert rig.record_counts() == before


# -- adopted ------------------------------------------------------------------------------------


def test_nothing_changed(open_rig: OpenRig, base: Path) -> None:
    (base / "d").mkdir()
    (base / "d" / "f").write_text("x")
    os.symlink("x", base / "s")
    rig = open_rig()
    rig.tree()
    steady(rig)


@pytest.mark.parametrize("same_size", [True, False])
def test_edited(open_rig: OpenRig, base: Path, same_size: bool) -> None:
    (base / "f").write_text("old")
    (base / "g").write_text("other")
    rig = open_rig()
    old = rig.tree()
    next_life(rig)
    new = b"new" if same_size else b"new and longer"
    (base / "f").write_bytes(new)
    rig.start()
    assert rig.read(b"f") == new
    assert rig.at(b"f").ino == old[b"f"].ino
    assert rig.at(b"f").mtime == (base / "f").stat().st_mtime_ns
    assert rig.problems() == [("lost", "f"), ("external", "f")]
    assert rig.view.counts() == Counts(0, 1, 0)
    steady(rig)
    rig.restore(START)
    assert (rig.at(b"f").size, rig.at(b"f").mtime) == (3, old[b"f"].mtime)
    assert errno_of(rig.read, b"f") == errno.EIO
    assert rig.read(b"g") == b"other"
    rig.undo()
    assert rig.read(b"f") == new


def test_edited_after_it_was_sealed(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_bytes(b"old" * B)
    rig = open_rig()
    seal(rig, b"f")
    next_life(rig)
    (base / "f").write_text("new")
    rig.start()
    assert rig.read(b"f") == b"new"
    assert rig.problems() == [("external", "f")]
    steady(rig)
    rig.restore(START)
    assert rig.read(b"f") == b"old" * B


def test_edited_in_every_life(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("0")
    rig = open_rig()
    rig.tree()
    for number in range(1, 5):
        if number == 3:
            rig.checkpoint()
        next_life(rig)
        (base / "f").write_text(f"edit {number}")
        rig.start()
        assert rig.read(b"f") == b"edit %d" % number
        assert ("external", "f") in rig.problems()
        assert ("conflict", "f") not in rig.problems()
    steady(rig)


def test_attributes_changed(open_rig: OpenRig, base: Path) -> None:
    """The content is the same, so no checkpoint loses it."""
    (base / "f").write_bytes(b"content" * B)
    os.setxattr(base / "f", "user.old", b"1")
    (base / "d").mkdir()
    rig = open_rig()
    rig.tree()
    next_life(rig)
    (base / "f").chmod(0o600)
    os.removexattr(base / "f", "user.old")
    os.setxattr(base / "f", "user.new", b"2")
    (base / "d").chmod(0o700)
    rig.start()
    assert rig.at(b"f").mode & 0o7777 == 0o600
    assert rig.xattrs(b"f") == {b"user.new": b"2"}
    assert rig.at(b"d").mode & 0o7777 == 0o700
    assert [kind for kind, path in rig.problems() if path == "f"] == ["external"]
    steady(rig)
    rig.restore(START)
    assert rig.read(b"f") == b"content" * B
    assert rig.at(b"f").mode & 0o7777 == 0o644
    assert rig.xattrs(b"f") == {b"user.old": b"1"}


def test_added(open_rig: OpenRig, base: Path) -> None:
    (base / "d").mkdir()
    rig = open_rig()
    rig.tree()
    next_life(rig)
    (base / "d" / "f").write_bytes(b"added" * B)
    (base / "new" / "sub").mkdir(parents=True)
    (base / "new" / "sub" / "g").write_text("g")
    os.symlink("x", base / "s")
    os.mkfifo(base / "p")
    rig.start()
    assert rig.ls() == [b"d", b"new", b"p", b"s"]
    assert rig.read(b"d/f") == b"added" * B
    assert rig.read(b"new/sub/g") == b"g"
    assert rig.at(b"s").target == b"x"
    assert rig.at(b"").nlink == 4
    assert set(rig.problems()) == {("external", path) for path in ("d/f", "new", "s", "p")}
    steady(rig)
    rig.restore(START)
    assert (rig.ls(), rig.ls(b"d")) == ([b"d"], [])
    rig.undo()
    assert rig.read(b"new/sub/g") == b"g"


def test_removed(open_rig: OpenRig, base: Path) -> None:
    (base / "d" / "e").mkdir(parents=True)
    (base / "d" / "e" / "f").write_text("x")
    (base / "f").write_text("x")
    (base / "sealed").write_text("sealed")
    os.symlink("x", base / "s")
    (base / "unlisted").mkdir()
    (base / "unlisted" / "x").write_text("x")
    rig = open_rig()
    rig.ls()
    rig.ls(b"d/e")
    seal(rig, b"sealed")
    next_life(rig)
    for name in ("d", "unlisted"):
        shutil.rmtree(base / name)
    for name in ("f", "sealed", "s"):
        (base / name).unlink()
    rig.start()
    assert rig.ls() == []
    assert rig.at(b"").nlink == 2
    kinds = rig.problems()
    for path in ("d", "unlisted", "f", "sealed", "s"):
        assert ("external", path) in kinds
    assert {path for kind, path in kinds if kind == "lost"} >= {"d/e/f", "f", "unlisted"}
    assert ("lost", "sealed") not in kinds
    assert rig.view.counts() == Counts(0, 0, 7)
    steady(rig)
    rig.restore(START)
    assert rig.ls() == [b"d", b"f", b"s", b"sealed", b"unlisted"]
    assert rig.read(b"sealed") == b"sealed"
    assert errno_of(rig.read, b"d/e/f") == errno.EIO
    assert rig.at(b"s").target == b"x"


def make_file(path: Path) -> None:
    path.write_text("a file now")


def make_directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("inside")


def make_symlink(path: Path) -> None:
    os.symlink("somewhere", path)


MAKERS = [make_file, make_directory, make_symlink]


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@pytest.mark.parametrize("new", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("old", MAKERS, ids=lambda make: make.__name__)
def test_replaced_by_another_kind(
    open_rig: OpenRig, base: Path, old: Callable[[Path], None], new: Callable[[Path], None]
) -> None:
    if old is new:
        return
    old(base / "x")
    rig = open_rig()
    rig.tree()
    next_life(rig)
    remove(base / "x")
    new(base / "x")
    (base / "x2").write_text("keeps the old inode numbers from coming back")
    rig.start()

    def check() -> None:
        if new is make_file:
            assert rig.read(b"x") == b"a file now"
        elif new is make_directory:
            assert rig.read(b"x/inside") == b"inside"
        else:
            assert rig.at(b"x").target == b"somewhere"

    check()
    assert ("external", "x") in rig.problems()
    assert not [kind for kind, _ in rig.problems() if kind == "conflict"]
    steady(rig)
    check()
    # And once more: what was adopted is known.
    next_life(rig)
    remove(base / "x")
    rig.start()
    assert rig.ls() == [b"x2"]


def test_hard_links_changed_together(open_rig: OpenRig, base: Path) -> None:
    for name in ("a", "b"):
        (base / name).mkdir()
    (base / "a" / "f").write_text("old")
    os.link(base / "a" / "f", base / "b" / "f")
    rig = open_rig()
    rig.tree()
    next_life(rig)
    (base / "a" / "f").write_text("edited")
    rig.start()
    assert rig.read(b"b/f") == rig.read(b"a/f") == b"edited"
    assert rig.at(b"a/f").ino == rig.at(b"b/f").ino
    assert not [kind for kind, _ in rig.problems() if kind == "conflict"]
    steady(rig)
    next_life(rig)
    (base / "a" / "f").unlink()
    (base / "b" / "f").unlink()
    rig.start()
    assert (rig.ls(b"a"), rig.ls(b"b")) == ([], [])
    assert rig.view.counts().deleted == 1
    steady(rig)


def test_one_of_two_hard_links_removed(open_rig: OpenRig, base: Path) -> None:
    (base / "a").write_text("x")
    os.link(base / "a", base / "b")
    rig = open_rig()
    rig.tree()
    next_life(rig)
    (base / "a").unlink()
    rig.start()
    assert rig.ls() == [b"b"]
    assert (rig.read(b"b"), rig.at(b"b").nlink) == (b"x", 1)
    steady(rig)


def test_a_directory_with_hard_links_moved(open_rig: OpenRig, base: Path) -> None:
    """The old inode is gone, also while its removal is not committed yet."""
    (base / "d").mkdir()
    (base / "d" / "a").write_text("x")
    os.link(base / "d" / "a", base / "d" / "b")
    rig = open_rig()
    rig.tree()
    next_life(rig)
    (base / "d").rename(base / "e")
    rig.start()
    assert rig.ls() == [b"e"]
    assert (rig.read(b"e/a"), rig.read(b"e/b")) == (b"x", b"x")
    assert rig.at(b"e/a").ino == rig.at(b"e/b").ino
    steady(rig)


@pytest.fixture
def reusing(base: Path) -> None:
    """Only where the file system gives a freed inode number to the next file."""
    with tempfile.TemporaryDirectory(dir=base.parent) as place:
        path = Path(place) / "x"
        path.touch()
        number = path.stat().st_ino
        path.unlink()
        path.touch()
        if path.stat().st_ino != number:
            pytest.skip("inode numbers are not used again at once here")


def test_an_inode_number_used_again_is_another_file(
    open_rig: OpenRig, base: Path, reusing: None
) -> None:
    (base / "a").write_text("old")
    os.link(base / "a", base / "b")
    rig = open_rig()
    rig.tree()
    next_life(rig)
    (base / "a").unlink()
    (base / "b").unlink()
    (base / "c").write_text("new!")
    os.link(base / "c", base / "d")
    rig.start()
    assert rig.ls() == [b"c", b"d"]
    assert (rig.read(b"c"), rig.read(b"d")) == (b"new!", b"new!")
    assert rig.at(b"c").ino == rig.at(b"d").ino
    steady(rig)


# -- changed on both sides ----------------------------------------------------------------------


def test_edited_on_both_sides(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("old")
    rig = open_rig()
    rig.save(b"f", b"mine")
    next_life(rig)
    (base / "f").write_text("theirs")
    rig.start()
    assert rig.read(b"f") == b"mine"
    assert ("conflict", "f") in rig.problems()
    steady(rig)
    assert rig.read(b"f") == b"mine"


@pytest.mark.parametrize("sealed", [True, False])
def test_a_partly_written_file_edited_outside(open_rig: OpenRig, base: Path, sealed: bool) -> None:
    """Its own blocks stay; of the others nobody has the bytes unless they were sealed."""
    (base / "f").write_bytes(b"o" * 2 * B)
    rig = open_rig()
    rig.write(b"f", b"mine")
    if sealed:
        seal(rig, b"f")
    next_life(rig)
    (base / "f").write_bytes(b"t" * 2 * B)
    rig.start()
    rig.ls()
    assert ("conflict", "f") in rig.problems()
    assert (("lost", "f") in rig.problems()) == (not sealed)
    handle = rig.open(b"f")
    assert handle.read(0, B) == b"mine" + b"o" * (B - 4)
    if sealed:
        assert handle.read(B, B) == b"o" * B
    else:
        assert errno_of(handle.read, B, B) == errno.EIO
    handle.close()


def truncated(rig: Rig) -> None:
    rig.truncate(b"f", B)


def extended(rig: Rig) -> None:
    rig.truncate(b"f", 3 * B)


@pytest.mark.parametrize("change", [truncated, extended], ids=lambda c: c.__name__)
def test_a_truncated_file_edited_outside(
    open_rig: OpenRig, base: Path, change: Callable[[Rig], None]
) -> None:
    (base / "f").write_bytes(b"o" * 2 * B)
    rig = open_rig()
    seal(rig, b"f")
    change(rig)
    mine = rig.read(b"f")
    next_life(rig)
    (base / "f").write_bytes(b"t")
    rig.start()
    assert rig.read(b"f") == mine
    assert rig.problems() == [("conflict", "f")]
    steady(rig)


def test_attributes_here_and_content_there(open_rig: OpenRig, base: Path) -> None:
    """No block was written here: their content is taken, our attributes stay."""
    (base / "f").write_text("old")
    rig = open_rig()
    rig.chmod(b"f", 0o751)
    attributes.set_attributes(rig.view, rig.at(b"f"), uid=7)
    rig.setxattr(b"f", b"user.mine", b"1")
    next_life(rig)
    (base / "f").write_text("theirs")
    rig.start()
    facts = rig.facts(rig.at(b"f"))
    assert rig.read(b"f") == b"theirs"
    assert rig.at(b"f").mtime == (base / "f").stat().st_mtime_ns
    assert (facts.mode & 0o7777, facts.uid, facts.xattrs) == (0o751, 7, {b"user.mine": b"1"})
    steady(rig)


def test_content_here_and_attributes_there(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_bytes(b"o" * 2 * B)
    rig = open_rig()
    rig.write(b"f", b"mine")
    next_life(rig)
    (base / "f").chmod(0o600)
    rig.start()
    assert rig.read(b"f") == b"mine" + b"o" * (2 * B - 4)
    assert rig.at(b"f").mode & 0o7777 == 0o644
    assert rig.problems() == [("conflict", "f")]
    steady(rig)


def test_edited_here_and_removed_there(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("old")
    rig = open_rig()
    rig.save(b"f", b"mine")
    next_life(rig)
    (base / "f").unlink()
    rig.start()
    assert rig.read(b"f") == b"mine"
    assert ("conflict", "f") in rig.problems()
    steady(rig)


def test_removed_here_and_edited_there(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("old")
    rig = open_rig()
    rig.unlink(b"f")
    next_life(rig)
    (base / "f").write_text("theirs")
    rig.start()
    assert rig.ls() == []
    assert ("lost", "f") in rig.problems()
    steady(rig)
    rig.restore(START)
    assert errno_of(rig.read, b"f") == errno.EIO


def test_moved_here_and_edited_there(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("old")
    (base / "sealed").write_text("old")
    rig = open_rig()
    seal(rig, b"sealed")
    rig.rename(b"f", b"g")
    rig.rename(b"sealed", b"sealed2")
    next_life(rig)
    (base / "f").write_text("theirs")
    (base / "sealed").write_text("theirs")
    rig.start()
    assert rig.ls() == [b"g", b"sealed2"]
    assert rig.read(b"sealed2") == b"old"
    assert rig.problems() == [("lost", "f")]
    assert errno_of(rig.read, b"g") == errno.EIO


def test_made_on_both_sides(open_rig: OpenRig, base: Path) -> None:
    rig = open_rig()
    rig.create(b"f", b"mine")
    rig.mkdir(b"d")
    rig.create(b"d/mine")
    next_life(rig)
    (base / "f").write_text("theirs")
    (base / "d").mkdir()
    (base / "d" / "theirs").write_text("x")
    rig.start()
    assert rig.read(b"f") == b"mine"
    assert rig.ls(b"d") == [b"mine"]
    assert rig.problems() == [("conflict", "d"), ("conflict", "f")]
    steady(rig)


def test_work_inside_a_directory_that_was_removed_outside(open_rig: OpenRig, base: Path) -> None:
    (base / "d" / "e").mkdir(parents=True)
    (base / "d" / "theirs").write_text("x")
    (base / "d" / "e" / "edited").write_text("old")
    rig = open_rig()
    rig.tree()
    rig.create(b"d/e/mine", b"mine")
    rig.mkdir(b"d/e/empty")
    rig.save(b"d/e/edited", b"edited")
    next_life(rig)
    shutil.rmtree(base / "d")
    rig.start()
    assert rig.ls() == [b"d"]
    assert rig.ls(b"d") == [b"e"]
    assert rig.ls(b"d/e") == [b"edited", b"empty", b"mine"]
    assert (rig.read(b"d/e/mine"), rig.read(b"d/e/edited")) == (b"mine", b"edited")
    assert ("conflict", "d") in rig.problems()
    steady(rig)


# -- while it is open ---------------------------------------------------------------------------


def test_edited_in_place_meanwhile(open_rig: OpenRig, base: Path) -> None:
    """Also when the volume has the file open already."""
    (base / "f").write_text("old")
    rig = open_rig()
    for content in ("new one", "a newer one", "new two"):
        (base / "f").write_text(content)
        assert rig.read(b"f") == content.encode()
    assert ("external", "f") in rig.problems()
    rig.checkpoint()
    steady(rig)


def test_replaced_meanwhile(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("old")
    rig = open_rig()
    assert rig.read(b"f") == b"old"
    (base / "f.tmp").write_text("new")
    os.replace(base / "f.tmp", base / "f")
    assert rig.read(b"f") == b"new"
    assert ("external", "f") in rig.problems()
    steady(rig)


def test_one_of_two_hard_links_replaced_meanwhile(open_rig: OpenRig, base: Path) -> None:
    (base / "a").write_text("old")
    os.link(base / "a", base / "b")
    rig = open_rig()
    rig.ls()
    (base / "tmp").write_text("new")
    os.replace(base / "tmp", base / "a")
    assert rig.read(b"b") == b"old"
    rig.reopen()
    assert (rig.read(b"a"), rig.read(b"b")) == (b"new", b"old")
    assert rig.at(b"a").ino != rig.at(b"b").ino
    steady(rig)


def test_one_of_two_hard_links_replaced(open_rig: OpenRig, base: Path) -> None:
    (base / "a").write_text("old")
    os.link(base / "a", base / "b")
    rig = open_rig()
    rig.tree()
    next_life(rig)
    (base / "tmp").write_text("new")
    os.replace(base / "tmp", base / "a")
    rig.start()
    assert (rig.read(b"a"), rig.read(b"b")) == (b"new", b"old")
    assert rig.at(b"a").ino != rig.at(b"b").ino
    steady(rig)


def test_a_link_made_outside(open_rig: OpenRig, base: Path) -> None:
    (base / "a").write_text("x")
    rig = open_rig()
    rig.tree()
    next_life(rig)
    os.link(base / "a", base / "b")
    rig.start()
    assert rig.read(b"b") == b"x"
    assert rig.at(b"a").ino == rig.at(b"b").ino
    assert rig.at(b"a").nlink == 2
    steady(rig)
    rig.restore(START)
    assert (rig.ls(), rig.at(b"a").nlink, rig.read(b"a")) == ([b"a"], 1, b"x")


def test_removed_meanwhile(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("old")
    rig = open_rig()
    rig.ls()
    (base / "f").unlink()
    assert errno_of(rig.read, b"f") == errno.EIO
    assert ("lost", "f") in rig.problems()
    assert rig.ls() == [b"f"]
    rig.reopen()
    assert rig.ls() == []


def test_an_open_handle_meanwhile(open_rig: OpenRig, base: Path) -> None:
    """A read never mixes two versions of a file: it fails, or shows what was imported."""
    (base / "f").write_bytes(b"o" * 2 * B)
    rig = open_rig()
    handle = rig.open(b"f")
    assert handle.read(0, B) == b"o" * B
    (base / "f").write_bytes(b"n" * 2 * B)
    try:
        second = handle.read(B, B)
    except Exception:
        second = b"o" * B
    assert second == b"o" * B
    handle.close()


def test_written_here_and_edited_meanwhile(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_bytes(b"o" * 2 * B)
    rig = open_rig()
    rig.write(b"f", b"mine")
    (base / "f").write_bytes(b"t" * 2 * B)
    handle = rig.open(b"f")
    assert handle.read(0, B) == b"mine" + b"o" * (B - 4)
    assert errno_of(handle.read, B, B) == errno.EIO
    assert ("lost", "f") in rig.problems()
    handle.close()


# -- random changes on both sides ---------------------------------------------------------------


def change_outside(base: Path, rng: random.Random) -> None:
    """One random change of the base directory. What an OSError stops does not matter."""
    paths = sorted(
        Path(top) / name for top, below, files in os.walk(base) for name in below + files
    )
    directories = [path for path in paths if path.is_dir() and not path.is_symlink()]
    path = rng.choice(paths) if paths else base / "x"
    new = rng.choice([base, *directories]) / rng.choice(["o1", "o2", "o3", "e", "f", "a1", "b1"])
    ours = path.is_file() and not path.is_symlink()
    what = rng.choice(
        ("edit", "edit", "cut", "replace", "remove", "mkdir", "create", "move", "link", "chmod")
    )
    try:
        if what == "edit" and ours:
            with path.open("r+b") as file:
                file.seek(rng.choice([0, 5, B - 6]))
                file.write(rng.randbytes(10))
        elif what == "cut" and ours:
            os.truncate(path, rng.choice([0, 10, B, B + 5]))
        elif what == "replace":
            (base / "tmp").write_bytes(rng.randbytes(50))
            os.replace(base / "tmp", new)
        elif what == "remove":
            remove(path)
        elif what == "mkdir":
            new.mkdir()
        elif what == "create" and not new.exists():
            new.write_bytes(rng.randbytes(rng.choice([0, 9, B + 5])))
        elif what == "move":
            path.rename(new)
        elif what == "link":
            os.link(path, new, follow_symlinks=False)
        elif what == "chmod" and not path.is_symlink():
            mode = rng.choice([0o600, 0o755])
            path.chmod(usable(mode) if path.is_dir() else mode)
    except OSError:
        (base / "tmp").unlink(missing_ok=True)


def readable(rig: Rig) -> dict[bytes, Facts | None]:
    """Facts of every path, None for content that is lost (EIO) and was reported."""
    out: dict[bytes, Facts | None] = {}
    for path, inode in rig.paths().items():
        lost = errno_of(rig.facts, inode)
        assert lost in (0, errno.EIO)
        assert not lost or "lost" in {kind for kind, _ in rig.problems()}
        out[path] = None if lost else rig.facts(inode)
    return out


@pytest.mark.parametrize("seed", range(25))
def test_random_changes_on_both_sides(open_rig: OpenRig, base: Path, seed: int) -> None:
    """Whatever happens outside, the workspace stays whole, and says each thing once."""
    fill_base(base)
    rig = open_rig()
    rig.tree()
    worker, rng = Worker(rig, seed), random.Random(seed)
    for _ in range(5):
        for _ in range(rng.randrange(6)):
            worker.step()
        rig.close()
        for _ in range(rng.randrange(1, 4)):
            change_outside(base, rng)
        rig.start()
        tree = readable(rig)
        rig.volume.sync()
        rig.evict()
        assert rig.volume.base is not None
        rig.volume.base.forget()
        assert readable(rig) == tree
        rig.reopen()
        assert readable(rig) == tree
        assert {kind for kind, _ in rig.problems()} <= {"lost"}


# -- their epoch --------------------------------------------------------------------------------


def external(rig: Rig) -> list[str]:
    """Messages of the checkpoints of changes from outside, oldest first."""
    rig.volume.sync()
    found = all_checkpoints(rig.volume.reader)
    return [record.message for record in found if record.kind == "external"]


def test_an_epoch_of_their_own(open_rig: OpenRig, base: Path) -> None:
    """What was done here before, what was done outside, and what is done here after it."""
    (base / "d").mkdir()
    for name in ("f", "g", "d/h"):
        (base / name).write_text("old")
    rig = open_rig()
    for path in (b"f", b"g", b"d/h"):
        seal(rig, path)
    rig.save(b"g", b"here")
    before = rig.tree()
    next_life(rig)
    (base / "f").write_text("outside")
    (base / "d" / "h").unlink()
    rig.start()
    assert rig.ls(b"d") == []
    assert rig.read(b"f") == b"outside"
    adopted = rig.tree()
    rig.create(b"new")
    assert external(rig) == ["before external changes", "external changes"]
    assert rig.view.counts() == Counts(1, 0, 0)
    first, second = (r for r in all_checkpoints(rig.volume.reader) if r.kind == "external")
    assert (first.counts, second.counts) == (Counts(0, 1, 0), Counts(0, 1, 1))
    rig.restore(first)
    assert {path: f.content for path, f in rig.tree().items()} == {
        path: f.content for path, f in before.items()
    }
    rig.restore(second)
    assert rig.tree() == adopted
    rig.undo()
    rig.undo()
    assert rig.exists(b"new")


def test_no_checkpoint_before_them_without_need(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("old")
    rig = open_rig()
    rig.tree()
    for number in (1, 2):
        next_life(rig)
        (base / "f").write_text(f"outside {number}")
        rig.start()
        assert rig.read(b"f") == b"outside %d" % number
    record = rig.checkpoint("mine")
    assert external(rig) == ["external changes", "external changes"]
    assert record.counts == Counts(0, 0, 0)


def test_their_epoch_goes_on_after_a_crash(open_rig: OpenRig, base: Path) -> None:
    for name in ("f", "g"):
        (base / name).write_text("old")
    (base / "d").mkdir()
    (base / "d" / "h").write_text("old")
    rig = open_rig()
    rig.tree()
    next_life(rig)
    (base / "f").write_text("outside")
    (base / "d" / "h").write_text("outside")
    rig.start()
    assert rig.read(b"f") == b"outside"
    rig.volume.sync()
    rig.crash()
    rig.start()
    assert rig.read(b"d/h") == b"outside"
    rig.chmod(b"g", 0o600)
    assert external(rig) == ["external changes"]
    assert rig.view.counts() == Counts(0, 1, 0)


def test_a_restore_seals_them_first(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("old")
    rig = open_rig()
    seal(rig, b"f")
    next_life(rig)
    (base / "f").write_text("outside")
    rig.start()
    assert rig.read(b"f") == b"outside"
    done = rig.restore(START)
    assert rig.read(b"f") == b"old"
    assert external(rig) == ["external changes"]
    assert done.rescue.counts == Counts(0, 0, 0)
    rig.undo()
    assert rig.read(b"f") == b"outside"


def test_what_was_restored_away_is_not_adopted_again(open_rig: OpenRig, base: Path) -> None:
    (base / "d").mkdir()
    (base / "d" / "f").write_text("old")
    rig = open_rig()
    seal(rig, b"d/f")
    old = rig.tree()
    next_life(rig)
    (base / "d" / "f").write_text("outside")
    (base / "d" / "new").touch()
    (base / "d").chmod(0o700)
    (base / "top").mkdir()
    base.chmod(0o711)
    rig.start()
    rig.tree()
    rig.restore(START)
    for _ in range(2):
        assert rig.tree() == old
        rig.reopen()
    assert external(rig) == ["external changes"]
    assert rig.problems() == []


# -- directories, and links across them ---------------------------------------------------------


def test_attributes_of_directories(open_rig: OpenRig, base: Path) -> None:
    """Of the top as well; where the workspace changed them they stay, and that is reported."""
    for name in ("d", "both", "mine"):
        (base / name).mkdir()
    rig = open_rig()
    rig.tree()
    rig.chmod(b"both", 0o700)
    rig.chmod(b"mine", 0o700)
    next_life(rig)
    (base / "d").chmod(0o750)
    os.setxattr(base / "d", "user.d", b"1")
    os.setxattr(base, "user.top", b"2")
    base.chmod(0o711)
    os.utime(base / "d", ns=(1, 2))
    (base / "both").chmod(0o711)
    rig.start()
    rig.ls()
    assert rig.at(b"d").mode & 0o7777 == 0o750
    assert (rig.at(b"d").mtime, rig.xattrs(b"d")) == (2, {b"user.d": b"1"})
    assert (rig.at(b"").mode & 0o7777, rig.xattrs(b"")) == (0o711, {b"user.top": b"2"})
    assert rig.at(b"both").mode & 0o7777 == 0o700
    assert rig.at(b"mine").mode & 0o7777 == 0o700
    assert rig.problems() == [("external", ""), ("conflict", "both"), ("external", "d")]
    rig.restore(START)
    assert rig.at(b"d").mode & 0o7777 == 0o755
    assert rig.xattrs(b"d") == {}


class Tick:
    """A clock that stands in the tick of what changed last, until somebody sleeps."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.before_its_end: Callable[[], None] = lambda: None
        self.look(base)
        monkeypatch.setattr(posix, "_gettime", lambda _: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def look(self, base: Path) -> None:
        things = (base, *base.rglob("*"))
        self.now = max(self.now, *(thing.lstat().st_ctime_ns for thing in things))

    def _sleep(self, _: float) -> None:
        self.before_its_end()
        self.before_its_end = lambda: None
        self.now += 4_000_000


@pytest.mark.parametrize("change", ["mode", "xattr", "times"])
def test_changed_in_the_tick_of_its_import(
    open_rig: OpenRig, base: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Its ctime tells that the workspace changed it: it is never that of the base. (CI once met a
    mode of the workspace that was replaced, where all of this took less than 4 ms.)"""
    (base / "d").mkdir()
    (base / "f").touch()
    os.symlink("x", base / "s")
    tick = Tick(base, monkeypatch)
    rig = open_rig()
    rig.tree()
    names = (b"", b"d", b"f", b"s")

    def mine() -> list[object]:
        if change == "times":
            return [rig.at(name).atime for name in names]
        return [(rig.at(name).mode, rig.xattrs(name).get(b"user.x")) for name in names[:3]]

    for name in names:
        if change == "mode" and name != b"s":
            rig.chmod(name, 0o700)
        elif change == "xattr" and name != b"s":
            attributes.set_xattr(rig.view, rig.at(name), b"user.x", b"mine")
        elif change == "times":
            attributes.set_attributes(rig.view, rig.at(name), atime=1)
        if change == "times" or name != b"s":
            assert rig.at(name).ctime > os.lstat(os.path.join(os.fsencode(base), name)).st_ctime_ns
    changed = mine()
    next_life(rig)
    for thing in (base / "d", base / "f", base):
        os.setxattr(thing, "user.x", b"outside")
        thing.chmod(0o711)
    tick.look(base)
    rig.start()
    rig.tree()
    assert mine() == changed


def test_changed_outside_in_the_tick_of_a_look(
    open_rig: OpenRig, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but its content tells it: size and times are those that were seen before."""
    (base / "f").write_text("old")
    tick = Tick(base, monkeypatch)
    seen = (base / "f").stat()

    def change() -> None:
        (base / "f").write_text("new")
        os.utime(base / "f", ns=(seen.st_atime_ns, seen.st_mtime_ns))

    tick.before_its_end = change
    rig = open_rig()
    rig.ls()
    assert rig.read(b"f") == b"new"
    steady(rig)


def test_changed_in_the_tick_of_the_end(
    open_rig: OpenRig, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is changed outside after the end is later: its times are not those of a change here."""
    (base / "f").touch()
    tick = Tick(base, monkeypatch)
    rig = open_rig()
    rig.tree()
    rig.chmod(b"f", 0o600)
    assert rig.at(b"f").ctime == tick.now
    changed = tick.now
    rig.close()
    assert tick.now > changed


def test_a_base_that_never_rests(
    open_rig: OpenRig, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown as it is after a while; and things of the future are not waited for."""
    (base / "f").touch()
    tick = Tick(base, monkeypatch)
    sleeps = []

    def touch(_: float) -> None:
        sleeps.append(1)
        (base / "f").chmod(0o600 + len(sleeps) % 2 * 0o100)
        tick.now = (base / "f").stat().st_ctime_ns

    monkeypatch.setattr(time, "sleep", touch)
    rig = open_rig()
    assert rig.ls() == [b"f"]
    assert len(sleeps) < 500
    rig.close()
    sleeps.clear()
    monkeypatch.setattr(posix, "_gettime", lambda _: 1_000_000_000)
    rig.start()
    assert rig.ls() == [b"f"]
    assert sleeps == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give directories away")
def test_the_owner_of_a_directory(open_rig: OpenRig, base: Path) -> None:
    (base / "d").mkdir()
    rig = open_rig()
    rig.tree()
    next_life(rig)
    os.chown(base / "d", 4711, 4712)
    rig.start()
    rig.ls()
    assert (rig.at(b"d").uid, rig.at(b"d").gid) == (4711, 4712)
    steady(rig)


@pytest.mark.parametrize("first", [b"a", b"z"])
def test_a_link_made_outside_in_another_directory(
    open_rig: OpenRig, base: Path, first: bytes
) -> None:
    """One file, whichever of the directories is looked into first."""
    for name in ("a", "z"):
        (base / name).mkdir()
    (base / "a" / "f").write_text("content")
    rig = open_rig()
    ino = rig.tree()[b"a/f"].ino
    next_life(rig)
    os.link(base / "a" / "f", base / "z" / "g")
    rig.start()
    rig.ls(first)
    rig.tree()
    for path in (b"a/f", b"z/g"):
        assert (rig.at(path).ino, rig.at(path).nlink) == (ino, 2)
        assert rig.read(path) == b"content"
    steady(rig)
    rig.restore(START)
    assert (rig.at(b"a/f").nlink, rig.ls(b"z")) == (1, [])


@pytest.mark.parametrize("first", [b"a", b"z"])
def test_a_link_removed_outside_of_a_file_that_was_applied(
    open_rig: OpenRig, base: Path, first: bytes
) -> None:
    for name in ("a", "z"):
        (base / name).mkdir()
    (base / "a" / "f").write_text("old")
    os.link(base / "a" / "f", base / "z" / "g")
    rig = open_rig()
    rig.tree()
    rig.write(b"a/f", b"written here")
    apply(rig.engine, AUTHOR, lambda **_: None)
    next_life(rig)
    (base / "z" / "g").unlink()
    rig.start()
    rig.ls(first)
    assert (rig.ls(b"a"), rig.ls(b"z")) == ([b"f"], [])
    assert rig.at(b"a/f").nlink == 1
    assert rig.read(b"a/f") == b"written here"
    assert ("external", "z/g") in rig.problems()
    assert "conflict" not in {kind for kind, _ in rig.problems()}
    steady(rig)


# -- applied --------------------------------------------------------------------------------------


def applied(rig: Rig) -> list[str]:
    """Apply; the paths of the problems."""
    return [row["path"] for row in apply(rig.engine, AUTHOR, lambda **_: None).problems]


def test_a_moved_directory_that_was_removed_outside(open_rig: OpenRig, base: Path) -> None:
    """The workspace has it under another name: apply makes all of it anew."""
    (base / "d" / "e").mkdir(parents=True)
    (base / "d" / "e" / "f").write_text("content")
    rig = open_rig()
    rig.tree()
    seal(rig, b"d/e/f")
    rig.rename(b"d", b"moved")
    next_life(rig)
    shutil.rmtree(base / "d")
    rig.start()
    assert rig.read(b"moved/e/f") == b"content"
    assert applied(rig) == []
    assert (base / "moved" / "e" / "f").read_text() == "content"
    steady(rig)


def test_a_directory_that_was_replaced_by_a_file(open_rig: OpenRig, base: Path) -> None:
    """What the workspace made in it needs the directory; the file is kept aside."""
    (base / "d").mkdir()
    rig = open_rig()
    rig.tree()
    rig.create(b"d/mine", b"mine")
    next_life(rig)
    (base / "d").rmdir()
    (base / "d").write_text("a file now")
    rig.start()
    assert rig.ls(b"d") == [b"mine"]
    assert applied(rig) == ["d"]
    assert (base / "d" / "mine").read_text() == "mine"
    assert (base / "d.outside-1").read_text() == "a file now"


def test_one_of_two_names_replaced_while_the_other_moved(open_rig: OpenRig, base: Path) -> None:
    (base / "a").write_text("content")
    os.link(base / "a", base / "b")
    rig = open_rig()
    rig.tree()
    seal(rig, b"a")
    rig.rename(b"b", b"c")
    next_life(rig)
    (base / "tmp").write_text("other")
    os.replace(base / "tmp", base / "a")
    rig.start()
    assert rig.ls() == [b"a", b"c"]
    assert applied(rig) == ["a"]
    assert (base / "a").read_text() == "content"
    assert (base / "a").samefile(base / "c")
    assert (base / "a.outside-1").read_text() == "other"


def test_made_outside_and_removed_at_once(open_rig: OpenRig, base: Path) -> None:
    """A directory that is adopted and removed in one epoch leaves nothing behind."""
    rig = open_rig()
    rig.tree()
    next_life(rig)
    (base / "d").mkdir()
    (base / "d" / "f").write_text("x")
    rig.start()
    assert rig.ls(b"d") == [b"f"]
    rig.volume.sync()
    rig.crash()  # else their epoch would be sealed
    shutil.rmtree(base / "d")
    rig.start()
    assert rig.ls() == []
    rig.checkpoint()
    records = all_checkpoints(rig.volume.reader)
    assert {record.counts for record in records} == {Counts(0, 0, 0)}


def test_a_directory_with_another_name_of_a_file(open_rig: OpenRig, base: Path) -> None:
    """Made outside, both; also when an apply has written the file anew."""
    (base / "f").write_text("old")
    rig = open_rig()
    rig.tree()
    rig.save(b"f", b"written here")
    assert applied(rig) == []
    next_life(rig)
    (base / "d" / "e").mkdir(parents=True)
    os.link(base / "f", base / "d" / "e" / "g")
    rig.start()
    rig.tree()
    assert rig.at(b"d/e/g").ino == rig.at(b"f").ino
    assert rig.at(b"f").nlink == 2
    assert rig.read(b"d/e/g") == b"written here"
    steady(rig)
    rig.restore(START)
    assert (rig.ls(), rig.at(b"f").nlink) == ([b"f"], 1)
