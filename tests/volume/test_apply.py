"""Apply without a mount: the base shows what the workspace shows, whatever stops it on the way."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cowfs.errors import ApplyConflictError
from cowfs.service.apply import Applied, apply
from cowfs.service.applying import attributes as applied_attributes
from cowfs.service.applying import executor, finishing, reach, staging
from cowfs.types import BLOCK_SIZE
from cowfs.volume import attributes, sealing
from cowfs.volume.base import STAGING
from tests.support.listing import difference, listing
from tests.support.steps import Worker
from tests.support.volumes import AUTHOR, START, Facts, Rig
from tests.volume.test_external import change_outside, readable
from tests.volume.test_history import change_everything, fill_base, ruin

B = BLOCK_SIZE
Tree = dict[bytes, Facts]
OpenRig = Callable[[], Rig]


def run(rig: Rig, *, dry_run: bool = False) -> Applied:
    return apply(rig.engine, AUTHOR, lambda **_: None, dry_run=dry_run)


def base_tree(rig: Rig) -> dict[bytes, tuple[object, ...]]:
    """What the base directory shows, comparable with `shown`."""
    assert rig.base is not None
    top = os.fsencode(rig.base)
    out: dict[bytes, tuple[object, ...]] = {}
    firsts: dict[int, bytes] = {}
    for text in listing(rig.base):
        path = b"" if text == "." else os.fsencode(text)
        place = os.path.join(top, path)
        st = os.lstat(place)
        content = b""
        if stat.S_ISREG(st.st_mode):
            content = Path(os.fsdecode(place)).read_bytes()
        elif stat.S_ISLNK(st.st_mode):
            content = os.readlink(place)
        names = os.listxattr(place, follow_symlinks=False)
        xattrs = {
            os.fsencode(name): os.getxattr(place, name, follow_symlinks=False) for name in names
        }
        is_dir = stat.S_ISDIR(st.st_mode)
        first = path if is_dir else firsts.setdefault(st.st_ino, path)
        mode = _without_link_mode(st.st_mode)
        owner = (st.st_uid, st.st_gid)
        size = 0 if is_dir else st.st_size
        out[path] = (mode, owner, st.st_rdev, size, st.st_mtime_ns, content, xattrs, first)
    return out


def _without_link_mode(mode: int) -> int:
    """Linux has no modes of symbolic links."""
    return stat.S_IFLNK if stat.S_ISLNK(mode) else mode


def shown(tree: Tree) -> dict[bytes, tuple[object, ...]]:
    """What a workspace shows, as `base_tree` would of a directory that is the same."""
    out: dict[bytes, tuple[object, ...]] = {}
    firsts: dict[int, bytes] = {}
    for path, facts in sorted(tree.items(), key=lambda row: os.fsdecode(row[0] or b".")):
        is_dir = stat.S_ISDIR(facts.mode)
        first = path if is_dir else firsts.setdefault(facts.ino, path)
        out[path] = (
            _without_link_mode(facts.mode),
            (facts.uid, facts.gid),
            facts.rdev,
            0 if is_dir else facts.size,
            facts.mtime,
            facts.content,
            facts.xattrs,
            first,
        )
    return out


def check(rig: Rig, result: Applied | None = None) -> None:
    """The base is the head, and the volume has not changed by it."""
    if result is not None:
        assert result.problems == []
    wanted, found = shown(rig.tree()), base_tree(rig)
    assert found.keys() == wanted.keys()
    for path in wanted:
        assert found[path] == wanted[path], path


def plain(rig: Rig) -> None:
    """Symbolic links and special files can have any attributes in a store, few on a disk."""
    for path, inode in rig.paths().items():
        if not (inode.is_dir or inode.is_file):
            for name in list(rig.xattrs(path)):
                if name.startswith(b"user."):
                    attributes.remove_xattr(rig.view, inode, name)


# -- what is written ----------------------------------------------------------------------------


@pytest.mark.parametrize("age", ["hot", "reopened"])
def test_all_kinds_of_changes(open_rig: OpenRig, base: Path, age: str) -> None:
    fill_base(base)
    original = listing(base)
    rig = open_rig()
    states: list[tuple[str, Tree]] = [(START, rig.tree())]
    for change in (change_everything, lambda r: r.save(b"d/f", b"short"), ruin):
        change(rig)
        if age == "reopened":
            rig.reopen()
        states.append((rig.checkpoint().id, rig.tree()))
        check(rig, run(rig))
        assert rig.problems() == []
    for checkpoint, tree in [*states, states[0]]:
        rig.restore(checkpoint)
        assert rig.tree() == tree
        check(rig, run(rig))
        assert rig.tree() == tree
    now = {path: entry._replace(ino=0) for path, entry in listing(base).items()}
    then = {path: entry._replace(ino=0) for path, entry in original.items()}
    del now["."], then["."]
    assert difference(then, now) == []


def test_a_second_apply_touches_nothing(open_rig: OpenRig, base: Path) -> None:
    fill_base(base)
    rig = open_rig()
    rig.tree()
    change_everything(rig)
    run(rig)
    before = {path: os.lstat(base / path) for path in listing(base)}
    result = run(rig)
    assert (result.created, result.written, result.deleted, result.moved) == (0, 0, 0, 0)
    after = {path: os.lstat(base / path) for path in listing(base)}
    assert {p: s.st_ctime_ns for p, s in after.items()} == {
        p: s.st_ctime_ns for p, s in before.items()
    }


def test_a_dry_run_writes_nothing(open_rig: OpenRig, base: Path) -> None:
    fill_base(base)
    before = listing(base)
    rig = open_rig()
    rig.tree()
    change_everything(rig)
    result = run(rig, dry_run=True)
    assert min(result.created, result.written, result.deleted) > 0
    assert difference(before, listing(base)) == []
    check(rig, run(rig))


def test_the_next_life_finds_no_outside_change(open_rig: OpenRig, base: Path) -> None:
    fill_base(base)
    rig = open_rig()
    rig.tree()
    change_everything(rig)
    run(rig)
    tree = rig.tree()
    for _ in range(2):
        rig.reopen()
        assert rig.tree() == tree
        assert rig.problems() == []
        check(rig, run(rig))


def test_outside_edits_of_what_was_applied_are_adopted(open_rig: OpenRig, base: Path) -> None:
    rig = open_rig()
    rig.create(b"f", b"mine")
    rig.mkdir(b"d")
    rig.create(b"d/g", b"mine")
    run(rig)
    rig.close()
    (base / "f").write_text("theirs")
    (base / "d" / "g").unlink()
    rig.start()
    assert rig.read(b"f") == b"theirs"
    assert rig.ls(b"d") == []
    assert not [kind for kind, _ in rig.problems() if kind == "conflict"]
    rig.save(b"f", b"mine again")
    check(rig, run(rig))


def test_an_outside_edit_is_saved_before_it_is_overwritten(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_text("old")
    rig = open_rig()
    rig.save(b"f", b"mine")
    rig.close()
    (base / "f").write_text("theirs")
    rig.start()
    assert rig.read(b"f") == b"mine"
    result = run(rig)
    kept = [path for path in base.iterdir() if path.read_text() == "theirs"]
    assert (base / "f").read_text() == "mine"
    assert [path.name for path in kept] == ["f.outside-1"], "as for anything that is not known"
    assert ("conflict", "f") in rig.problems()
    assert result.epoch


def test_a_hole_where_the_base_has_bytes(open_rig: OpenRig, base: Path) -> None:
    """The same size, the same bytes but for zeros."""
    rig = open_rig()
    rig.create(b"f", b"x" * 3 * B)
    rig.create(b"g", b"x" * 3 * B)
    check(rig, run(rig))
    for name, size in ((b"f", B), (b"g", 2 * B)):
        rig.truncate(name, size)
        rig.truncate(name, 3 * B)
    rig.write(b"f", b"x" * B, 2 * B)
    check(rig, run(rig))


def test_a_huge_sparse_file(open_rig: OpenRig, base: Path) -> None:
    rig = open_rig()
    rig.create(b"f", b"start")
    rig.write(b"f", b"far", 3 << 40)
    rig.truncate(b"f", 15 << 40)
    try:
        with (base / "probe").open("wb") as file:
            file.truncate(15 << 40)
        (base / "probe").unlink()
    except OSError:
        (base / "probe").unlink()
        pytest.skip("the file system here has no files of that size")
    assert run(rig).problems == []
    assert run(rig).written == 0
    with (base / "f").open("rb") as file:
        assert os.fstat(file.fileno()).st_size == 15 << 40
        assert os.pread(file.fileno(), 8, 0) == b"start\0\0\0"
        assert os.pread(file.fileno(), 8, (3 << 40) - 2) == b"\0\0far\0\0\0"


def test_nothing_outside_is_touched_by_way_of_a_link(open_rig: OpenRig, base: Path) -> None:
    outside = base.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("not ours")
    (base / "d").mkdir()
    (base / "d" / "f").write_text("ours")
    rig = open_rig()
    rig.tree()
    rig.save(b"d/f", b"new")
    rig.create(b"d/g", b"new")
    rig.volume.sync()
    shutil.rmtree(base / "d")
    os.symlink("../outside", base / "d")
    before = listing(outside)
    with contextlib.suppress(ApplyConflictError):
        run(rig)
    assert difference(before, listing(outside)) == []


def test_a_link_that_became_a_directory_and_back(open_rig: OpenRig, base: Path) -> None:
    outside = base.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("not ours")
    os.symlink("../outside", base / "x")
    before = listing(outside)
    rig = open_rig()
    rig.tree()
    rig.unlink(b"x")
    rig.mkdir(b"x")
    rig.create(b"x/f", b"ours")
    check(rig, run(rig))
    rig.restore(START)
    check(rig, run(rig))
    assert difference(before, listing(outside)) == []


# -- what the base lost ------------------------------------------------------------------------


def test_work_in_a_directory_that_was_removed_outside(open_rig: OpenRig, base: Path) -> None:
    (base / "d" / "e").mkdir(parents=True)
    (base / "d" / "f").write_text("x")
    rig = open_rig()
    rig.tree()
    rig.chmod(b"d", 0o700)
    rig.create(b"d/e/mine", b"mine")
    rig.close()
    shutil.rmtree(base / "d")
    rig.start()
    rig.tree()
    check(rig, run(rig))
    assert (base / "d").stat().st_mode & 0o7777 == 0o700
    assert (base / "d" / "e" / "mine").read_text() == "mine"


@pytest.mark.parametrize("what", ["content", "attributes", "link"])
def test_a_changed_file_that_was_removed_outside(open_rig: OpenRig, base: Path, what: str) -> None:
    (base / "f").write_text("x")
    if what == "link":
        os.link(base / "f", base / "g")
    rig = open_rig()
    rig.tree()
    if what == "content":
        rig.save(b"f", b"mine")
    else:
        sealing.seal(rig.view, rig.at(b"f").content)
        rig.chmod(b"f", 0o600)
    rig.close()
    (base / "f").unlink()
    rig.start()
    rig.tree()
    check(rig, run(rig))
    rig.reopen()
    rig.tree()
    assert rig.problems() == []


def test_a_file_that_nobody_has_does_not_stop_the_others(open_rig: OpenRig, base: Path) -> None:
    (base / "f").write_bytes(b"old" * B)
    rig = open_rig()
    rig.write(b"f", b"mine")
    rig.create(b"g", b"mine")
    rig.close()
    (base / "f").write_bytes(b"theirs" * B)
    rig.start()
    rig.ls()
    assert [row["path"] for row in run(rig).problems] == ["f"]
    assert (base / "g").read_text() == "mine"
    assert (base / "f").read_bytes() == b"theirs" * B


def test_a_directory_that_was_removed_outside(open_rig: OpenRig, base: Path) -> None:
    (base / "d").mkdir()
    (base / "d" / "f").write_text("x")
    rig = open_rig()
    rig.tree()
    rig.close()
    shutil.rmtree(base / "d")
    rig.start()
    rig.tree()
    check(rig, run(rig))


@pytest.mark.parametrize("what", ["removed", "moved", "replaced", "rewritten"])
def test_what_was_made_outside_and_changed_here(open_rig: OpenRig, base: Path, what: str) -> None:
    """It is in neither of the states that apply compares, but in the base."""
    rig = open_rig()
    rig.create(b"mine", b"mine")
    rig.close()
    (base / "f").write_bytes(b"theirs" * B)
    (base / "d" / "e").mkdir(parents=True)
    (base / "d" / "g").write_text("x")
    rig.start()
    rig.tree()
    adopted = rig.checkpoint()
    was = rig.tree()
    if what == "removed":
        rig.unlink(b"f")
        rig.remove_tree(b"d")
    elif what == "moved":
        rig.rename(b"f", b"f2")
        rig.rename(b"d", b"d2")
    elif what == "replaced":
        rig.rename(b"mine", b"f")
        rig.remove_tree(b"d")
        rig.create(b"d", b"a file")
    else:
        rig.save(b"f", b"mine")
        rig.write(b"d/g", b"y")
    tree = rig.tree()
    check(rig, run(rig))
    assert rig.tree() == tree
    rig.reopen()
    assert rig.tree() == tree
    assert rig.problems() == []
    check(rig, run(rig))
    rig.restore(adopted)
    assert rig.tree() == was
    check(rig, run(rig))


# -- random work --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_random_states(open_rig: OpenRig, base: Path, seed: int) -> None:
    fill_base(base)
    rig = open_rig()
    worker, rng = Worker(rig, seed), random.Random(seed)
    states: list[tuple[str, Tree]] = [(START, rig.tree())]
    for _ in range(10):
        for _ in range(rng.randrange(1, 15)):
            worker.step()
        if rng.random() < 0.3 and len(states) > 1:
            rig.restore(rng.choice(states)[0])
        plain(rig)
        tree = rig.tree()
        if rng.random() < 0.3:
            rig.reopen()
        check(rig, run(rig))
        assert rig.tree() == tree
        states.append((rig.checkpoint().id, tree))
        if rng.random() < 0.5:
            rig.reopen()
            assert rig.tree() == tree
            assert rig.problems() == []
    for checkpoint, tree in states:
        rig.restore(checkpoint)
        assert rig.tree() == tree


# -- stopped in the middle ----------------------------------------------------------------------


class StoppedError(BaseException):
    """The process ends here."""


class StoppingOs:
    """The `os` module, but the process ends at the n-th call that changes something."""

    CHANGING = frozenset(
        {"chmod", "chown", "ftruncate", "link", "mkdir", "mknod", "pwrite", "removexattr"}
        | {"rename", "rmdir", "setxattr", "symlink", "unlink", "utime"}
    )

    def __init__(self, stop_at: int) -> None:
        self.calls = 0
        self._stop_at = stop_at

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in self.CHANGING:
            return function

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.calls == self._stop_at:
                raise StoppedError
            self.calls += 1
            return function(*args, **kwargs)

        return call


def prepared(rig: Rig) -> None:
    """Work of every kind, some of it in the way of other."""
    change_everything(rig)
    rig.rename(b"d", b"moved")
    rig.mkdir(b"d")
    rig.create(b"d/f", b"another file of that name")
    rig.link(b"moved/f", b"d/link")
    rig.write(b"moved/f", b"rewritten and moved", 2 * B)
    rig.create(b"swap1", b"1")
    rig.create(b"swap2", b"2")
    plain(rig)


@pytest.mark.parametrize("again", [False, True])
def test_stopped_at_every_call(
    open_rig: OpenRig, base: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """The next run completes what one left half done, whatever it was."""
    fill_base(base)
    total, stop_at = 1, 0
    while stop_at < total:
        shutil.rmtree(base)
        base.mkdir()
        fill_base(base)
        rig = open_rig()
        rig.base = base
        start = rig.tree()
        if again:
            run(rig)
        prepared(rig)
        tree = rig.tree()
        stopping = StoppingOs(stop_at)
        with monkeypatch.context() as patch:
            for module in (executor, applied_attributes, finishing, reach, staging):
                patch.setattr(module, "os", stopping)
            try:
                run(rig)
            except StoppedError:
                total = stopping.calls + 2
        rig.crash()
        rig.start()
        result = run(rig)  # the daemon does that before anybody can look
        assert rig.tree() == tree, stop_at
        check(rig)
        assert not (base / os.fsdecode(STAGING)).exists()
        assert result.problems == []
        rig.restore(START)
        assert rig.tree() == start, stop_at
        stop_at += 1
        rig.finish(check=stop_at % 10 == 0)


@pytest.mark.parametrize("seed", range(20))
def test_random_changes_on_both_sides(open_rig: OpenRig, base: Path, seed: int) -> None:
    """After each apply the directory shows the workspace, attributes and times included; but where
    content is lost, or something was kept aside, which is said."""
    fill_base(base)
    rig = open_rig()
    rig.tree()
    worker, rng = Worker(rig, seed), random.Random(seed)
    for _ in range(4):
        for _ in range(rng.randrange(6)):
            worker.step()
        rig.close()
        for _ in range(rng.randrange(1, 4)):
            change_outside(base, rng)
        rig.start()
        rig.paths()
        plain(rig)
        if run(rig).problems or None in readable(rig).values():
            return
        check(rig)


def test_what_an_apply_did_to_the_top_is_not_taken_for_a_change_from_outside(
    open_rig: Callable[[], Rig], base: Path
) -> None:
    (base / "there").write_bytes(b"")
    rig = open_rig()
    rig.tree()
    start = rig.checkpoint()
    rig.mkdir(b"new")
    assert apply(rig.engine, AUTHOR, lambda **_: None).problems == []
    rig.restore(start)
    shown = rig.tree()
    rig.reopen()
    assert rig.tree() == shown
    assert not rig.volume.external.adoption.adopting
