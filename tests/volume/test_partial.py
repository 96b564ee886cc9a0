"""Restoring some paths only: those become what they were, and nothing else changes."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.errors import UnknownPathError
from cowfs.types import BLOCK_SIZE
from cowfs.volume import attributes
from tests.support.steps import Worker
from tests.support.volumes import START, Facts, Rig
from tests.volume.test_history import change_everything, fill_base, ruin

B = BLOCK_SIZE
Tree = dict[bytes, Facts]


def below(path: bytes, top: bytes) -> bool:
    return not top or path == top or path.startswith(top + b"/")


def shown(facts: Facts) -> tuple[object, ...]:
    """What a restored path must show; its number may be new, names elsewhere may be links."""
    return (
        facts.mode,
        facts.uid,
        facts.gid,
        facts.rdev,
        facts.size,
        facts.mtime,
        facts.content,
        facts.xattrs,
    )


def unmoved(facts: Facts) -> tuple[object, ...]:
    """What must not change of other paths; a directory's times change with its entries, a link
    count with other names."""
    if stat.S_ISDIR(facts.mode):
        return facts.ino, facts.mode, facts.uid, facts.gid, facts.xattrs
    return facts._replace(nlink=0, ctime=0)


def check(before: Tree, after: Tree, then: Tree, paths: list[bytes]) -> None:
    """`after` is `then` at and below the paths, and `before` everywhere else."""

    def inside(path: bytes) -> bool:
        return any(below(path, top) for top in paths)

    wanted = {path for path in then if inside(path)}
    assert {path for path in after if inside(path)} == wanted
    links: dict[int, set[bool]] = {}
    for tree in (before, then):
        for path, facts in tree.items():
            links.setdefault(facts.ino, set()).add(inside(path))
    for path in wanted:
        assert shown(after[path]) == shown(then[path]), path
    above = {path for path in wanted for top in paths if below(top, path)}
    for path, facts in before.items():
        if inside(path) or path in above:
            continue
        in_the_way = any(below(top, path) for top in paths) and not stat.S_ISDIR(facts.mode)
        if in_the_way:
            continue
        if len(links[facts.ino]) > 1 and not stat.S_ISDIR(facts.mode):
            continue  # the same file as a restored one
        assert path in after, path
        assert unmoved(after[path]) == unmoved(facts), path


@pytest.mark.parametrize("age", ["hot", "evicted", "reopened"])
@pytest.mark.parametrize(
    "path", [b"d", b"d/f", b"d/e", b"d/e/g", b"link", b"symlink", b"fifo", b"e", b"new", b""]
)
def test_one_path(open_rig: Callable[[], Rig], base: Path, age: str, path: bytes) -> None:
    fill_base(base)
    rig = open_rig()
    then = rig.tree()
    for change in (change_everything, ruin):
        change(rig)
        rig.volume.sync()
        if age != "hot":
            rig.evict()
        if age == "reopened":
            rig.reopen()
        before = rig.tree()
        if age != "hot":
            rig.evict()
        if path not in then and path not in before:
            with pytest.raises(UnknownPathError):
                rig.restore_paths(START, [path])
            continue
        rig.restore_paths(START, [path])
        after = rig.tree()
        check(before, after, then, [path])
        rig.volume.sync()
        rig.evict()
        assert rig.tree() == after
        rig.undo()
        assert rig.tree() == before
        rig.redo()
        assert rig.tree() == after
        rig.undo()


def test_everything_but_some(open_rig: Callable[[], Rig], base: Path) -> None:
    fill_base(base)
    (base / ".git").mkdir()
    (base / ".git" / "index").write_text("old")
    (base / "d" / "keep.log").write_text("old log")
    rig = open_rig()
    then = rig.tree()
    rig.save(b".git/index", b"new")
    rig.create(b".git/new", b"new")
    rig.save(b"d/keep.log", b"new log")
    rig.create(b"d/more.log", b"more")
    rig.create(b"d/junk", b"junk")
    rig.save(b"d/e/g", b"edited")
    rig.restore_paths(START, [], [b".git", b"*.log"])
    assert (rig.read(b".git/index"), rig.read(b".git/new")) == (b"new", b"new")
    assert (rig.read(b"d/keep.log"), rig.read(b"d/more.log")) == (b"new log", b"more")
    assert not rig.exists(b"d/junk")
    assert shown(rig.tree()[b"d/e/g"]) == shown(then[b"d/e/g"])


def test_an_excluded_file_keeps_its_directory(volume: Rig) -> None:
    then = volume.checkpoint()
    volume.mkdir(b"d")
    volume.create(b"d/keep.log", b"x")
    volume.create(b"d/go", b"x")
    volume.restore_paths(then, [], [b"*.log"])
    assert (volume.ls(), volume.ls(b"d")) == ([b"d"], [b"keep.log"])


def test_a_file_that_moved_on_is_copied_back(volume: Rig) -> None:
    """The other name keeps its file, with what it has now."""
    volume.create(b"a", b"old" * B)
    volume.setxattr(b"a", b"user.a", b"1")
    then = volume.checkpoint()
    was = volume.tree()[b"a"]
    volume.rename(b"a", b"b")
    volume.write(b"b", b"NEW")
    volume.restore_paths(then, [b"a"])
    assert shown(volume.tree()[b"a"]) == shown(was)
    assert volume.read(b"b") == b"NEW" + (b"old" * B)[3:]
    assert volume.at(b"a").ino != volume.at(b"b").ino
    volume.write(b"a", b"other")
    volume.reopen()
    assert volume.read(b"b")[:5] == b"NEWol"


@pytest.mark.parametrize("change", ["mode", "mtime", "xattr", "content"])
def test_a_hard_link_comes_back_as_it_was(volume: Rig, change: str) -> None:
    """A name that stays keeps what it shows; as long as both show the same, they are one file."""
    volume.create(b"a", b"old")
    volume.setxattr(b"a", b"user.a", b"1")
    volume.link(b"a", b"b")
    then = volume.checkpoint()
    was = volume.tree()[b"a"]
    volume.unlink(b"a")
    volume.restore_paths(then, [b"a"])
    assert volume.at(b"a") is volume.at(b"b")
    assert (volume.at(b"a").nlink, shown(volume.tree()[b"a"])) == (2, shown(was))
    volume.unlink(b"a")
    change_file(volume, b"b", change)
    before = volume.tree()[b"b"]
    volume.restore_paths(then, [b"a"])
    assert shown(volume.tree()[b"a"]) == shown(was)
    assert volume.tree()[b"b"] == before
    assert volume.at(b"a").ino != volume.at(b"b").ino


@pytest.mark.parametrize("change", ["mode", "mtime", "xattr", "content"])
@pytest.mark.parametrize("lost", [b"d/a", b"d/e/a", b"d/z"])
def test_names_that_are_restored_together_are_one_file_again(
    volume: Rig, change: str, lost: bytes
) -> None:
    """Whichever of them is come to first."""
    volume.mkdir(b"d")
    volume.mkdir(b"d/e")
    volume.create(b"d/f", b"old")
    volume.link(b"d/f", lost)
    then = volume.checkpoint()
    was = volume.tree()
    volume.unlink(lost)
    change_file(volume, b"d/f", change)
    volume.restore_paths(then, [b"d"])
    now = volume.tree()
    assert now.keys() == was.keys()
    assert [shown(now[path]) for path in now] == [shown(was[path]) for path in now]
    assert (now[lost].ino, now[lost].nlink) == (now[b"d/f"].ino, 2)
    volume.reopen()
    assert volume.tree() == now
    volume.unlink(lost)
    volume.restore_paths(then, [lost, b"d/f"])
    assert volume.tree()[lost].ino == volume.tree()[b"d/f"].ino


def change_file(rig: Rig, path: bytes, what: str) -> None:
    """Change one thing of a file."""
    if what == "xattr":
        rig.setxattr(path, b"user.a", b"2")
    elif what == "content":
        rig.write(path, b"new")
    elif what == "mode":
        attributes.set_attributes(rig.view, rig.at(path), mode=0o600)
    else:
        attributes.set_attributes(rig.view, rig.at(path), mtime=5)


def test_a_truncated_base_file_comes_back(open_rig: Callable[[], Rig], base: Path) -> None:
    content = os.urandom(3 * B + 5)
    (base / "f").write_bytes(content)
    rig = open_rig()
    rig.truncate(b"f", B + 10)
    cut = rig.checkpoint()
    rig.truncate(b"f", 2 * B)
    rig.write(b"f", b"x", 0)
    rig.restore_paths(START, [b"f"])
    assert rig.read(b"f") == content
    rig.reopen()
    assert rig.read(b"f") == content
    rig.restore_paths(cut, [b"f"])
    assert rig.read(b"f") == content[: B + 10]
    rig.truncate(b"f", 3 * B)
    assert rig.read(b"f") == content[: B + 10] + bytes(2 * B - 10)


def test_a_sealed_base_file_is_cut_where_it_was(open_rig: Callable[[], Rig], base: Path) -> None:
    """What was cut off does not come back with a path whose base content is in the store."""
    content = os.urandom(3 * B)
    (base / "f").write_bytes(content)
    rig = open_rig()
    rig.truncate(b"f", B - 1)
    rig.truncate(b"f", 2 * B)
    cut = rig.checkpoint()
    rig.rename(b"f", b"g")
    rig.restore_paths(START, [b"f"])  # a copy, which seals the base file
    assert rig.read(b"f") == content
    rig.truncate(b"g", 1)
    rig.truncate(b"g", 2 * B)
    rig.rename(b"g", b"f")
    rig.restore_paths(cut, [b"f"])
    assert rig.read(b"f") == content[: B - 1] + bytes(B + 1)
    rig.truncate(b"f", 3 * B)
    rig.reopen()
    assert rig.read(b"f") == content[: B - 1] + bytes(2 * B + 1)


@pytest.mark.parametrize("paths", [[b"d", b"d/e"], [b"d/e/g", b"d"], [b"d/f", b"d/f"], [b"d", b""]])
def test_paths_within_each_other(
    open_rig: Callable[[], Rig], base: Path, paths: list[bytes]
) -> None:
    fill_base(base)
    rig = open_rig()
    then = rig.tree()
    rig.rename(b"d/e", b"e")
    rig.create(b"d/e", b"a file in the way")
    rig.save(b"d/f", b"new")
    before = rig.tree()
    rig.restore_paths(START, paths)
    after = rig.tree()
    check(before, after, then, paths)
    rig.reopen()
    assert rig.tree() == after


@pytest.mark.parametrize("changed", [True, False])
def test_a_renamed_directory_goes_back_with_its_files(volume: Rig, changed: bool) -> None:
    """The same inodes are removed under one name and come back under another one."""
    volume.mkdir(b"d")
    volume.mkdir(b"d/old")
    volume.create(b"d/old/f", b"content" * B)
    volume.setxattr(b"d/old/f", b"user.a", b"1")
    volume.link(b"d/old/f", b"d/old/g")
    then = volume.checkpoint()
    was = volume.tree()
    volume.rename(b"d/old", b"d/a-new")
    if changed:
        volume.unlink(b"d/a-new/g")
    before = volume.tree()
    volume.restore_paths(then, [b"d"])
    after = volume.tree()
    check(before, after, was, [b"d"])
    assert after[b"d/old/f"].ino == was[b"d/old/f"].ino
    volume.volume.sync()
    volume.evict()
    assert volume.tree() == after
    volume.undo()
    assert volume.tree() == before


def test_open_files(volume: Rig) -> None:
    volume.create(b"f", b"old")
    volume.create(b"gone", b"old")
    then = volume.checkpoint()
    volume.create(b"new", b"new")
    f, gone, new = volume.open(b"f"), volume.open(b"gone"), volume.open(b"new")
    f.write(0, b"NEW")
    volume.unlink(b"gone")
    gone.write(0, b"GONE")
    volume.restore_paths(then, [b"f", b"gone", b"new"])
    assert (f.read(), gone.read(), new.read()) == (b"old", b"old", b"new")
    assert (f.inode.nlink, gone.inode.nlink, new.inode.nlink) == (1, 1, 0)
    for handle in (f, gone, new):
        handle.write(0, b"later")
    volume.volume.sync()
    volume.evict()
    assert (volume.read(b"f"), volume.read(b"gone")) == (b"later", b"later")
    assert volume.ls() == [b"f", b"gone"]
    for handle in (f, gone, new):
        handle.close()
    volume.reopen()
    assert (volume.read(b"f"), volume.read(b"gone")) == (b"later", b"later")


@pytest.mark.parametrize("how", ["written", "restored"])
def test_an_open_file_that_was_as_before_when_it_lost_its_name(
    open_rig: Callable[[], Rig], base: Path, how: str
) -> None:
    """What it got in the epoch in which it lost its name is dropped when it gets one again; older
    blocks must not come to light then, neither in it nor beyond its end."""
    (base / "f").write_bytes(b"old" * B)
    (base / "g").write_bytes(b"old")
    rig = open_rig()
    rig.write(b"f", b"old", B)
    then = rig.checkpoint()
    was = rig.tree()
    rig.write(b"f", b"NEW", 1)
    rig.write(b"f", b"NEW", B)
    rig.write(b"g", b"NEW", 2 * B)
    rig.checkpoint()
    if how == "restored":
        rig.restore_paths(then, [b"f", b"g"])
    else:
        rig.write(b"f", b"ldo", 1)
        rig.write(b"f", b"old", B)
        rig.truncate(b"g", 3)
    rig.volume.sync()
    handles = [rig.open(b"f"), rig.open(b"g")]
    rig.unlink(b"f")
    rig.unlink(b"g")
    rig.restore_paths(then, [b"f", b"g"])
    for path in (b"f", b"g"):
        assert shown(rig.tree()[path]) == shown(was[path])
    rig.truncate(b"g", 3 * B)
    assert [handle.read(0, 3 * B) for handle in handles] == [rig.read(b"f"), rig.read(b"g")]
    for handle in handles:
        handle.close()
    rig.reopen()
    assert rig.read(b"f") == was[b"f"].content
    assert rig.read(b"g") == b"old" + bytes(3 * B - 3)


def test_a_path_below_what_is_a_file_now(volume: Rig) -> None:
    volume.mkdir(b"d")
    volume.create(b"d/f", b"f")
    attributes.set_attributes(volume.view, volume.at(b"d"), mode=0o700, mtime=5)
    then = volume.checkpoint()
    volume.remove_tree(b"d")
    volume.create(b"d", b"a file")
    volume.restore_paths(then, [b"d/f"])
    assert volume.read(b"d/f") == b"f"
    assert volume.at(b"d").mode & 0o7777 == 0o700


@pytest.mark.parametrize("seed", range(12))
def test_random_states(open_rig: Callable[[], Rig], base: Path, seed: int) -> None:
    fill_base(base)
    rig = open_rig()
    worker, rng = Worker(rig, seed), random.Random(seed)
    states = [(START, rig.tree())]
    for _ in range(12):
        for _ in range(rng.randrange(2, 12)):
            worker.step()
        before = rig.tree()
        if rng.random() < 0.5:
            states.append((rig.checkpoint().id, before))
        target, then = rng.choice(states)
        known = sorted(path for path in then.keys() | before.keys() if path)
        if not known:
            continue
        paths = rng.sample(known, min(len(known), rng.choice([1, 1, 2])))
        if rng.random() < 0.5:
            rig.volume.sync()
            rig.evict()
        rig.restore_paths(target, paths)
        after = rig.tree()
        check(before, after, then, paths)
        rig.volume.sync()
        rig.evict()
        assert rig.tree() == after
        rig.undo()
        assert rig.tree() == before
        if rng.random() < 0.5:
            rig.redo()
            assert rig.tree() == after
        if rng.random() < 0.3:
            rig.reopen()
