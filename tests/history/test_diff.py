"""Diff: the right status for everything that can happen to a file."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.errors import ContentLostError, UnknownPathError
from cowfs.format import records
from cowfs.service.diff import Change, count, diff
from cowfs.service.textdiff import stat_of
from cowfs.service.workspace import ReadOnly
from cowfs.volume import attributes, namespace
from tests.history.states import history
from tests.support.volumes import Rig

OpenRig = Callable[[], Rig]


def short(changes: list[Change]) -> list[tuple[str, str, str]]:
    """(status, path, old path or "")."""
    return [
        (c.status, os.fsdecode(c.path), os.fsdecode(c.old_path) if c.old_path is not None else "")
        for c in changes
    ]


def since(workspace: ReadOnly, a: records.CheckpointRecord, *paths: bytes) -> list[Change]:
    return diff(workspace, workspace.point(a.id), workspace.point("@"), paths)


@pytest.fixture
def rig(open_rig: OpenRig, base: Path) -> Rig:
    (base / "d").mkdir()
    (base / "d/sub").mkdir()
    (base / "d/sub/deep").write_text("deep\n")
    (base / "d/one").write_text("1\n2\n3\n")
    (base / "d/two").write_text("two\n")
    (base / "file").write_text("line\n" * 10)
    (base / "link").symlink_to("file")
    (base / "never").mkdir()
    (base / "never/looked").write_text("unlisted\n")
    (base / "never/below").mkdir()
    (base / "never/below/x").write_text("x\n")
    return open_rig()


def test_nothing_changed(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.read(b"file")
    with history(rig) as workspace:
        assert since(workspace, a) == []


def test_added_modified_deleted(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.create(b"new", b"a\nb\n")
    rig.write(b"file", b"LINE", 5)
    rig.unlink(b"d/two")
    rig.create(b"gone at once")
    rig.unlink(b"gone at once")
    with history(rig) as workspace:
        changes = since(workspace, a)
        assert short(changes) == [("D", "d/two", ""), ("M", "file", ""), ("A", "new", "")]
        assert [(s.added, s.removed, s.old_size, s.new_size) for s in map(stat_of, changes)] == [
            (0, 1, 4, 0),
            (1, 1, 50, 50),
            (2, 0, 0, 4),
        ]
        totals = {"added": 1, "modified": 1, "deleted": 1}
        assert count(changes) == dict.fromkeys(count([]), 0) | totals
        backwards = diff(workspace, workspace.point("@"), workspace.point(a.id))
        assert short(backwards) == [("A", "d/two", ""), ("M", "file", ""), ("D", "new", "")]


def test_content_that_came_back_is_no_change(rig: Rig) -> None:
    a = rig.checkpoint()
    before = rig.read(b"file")
    rig.save(b"file", b"something else")
    rig.checkpoint()
    rig.save(b"file", before)
    attributes.set_attributes(rig.view, rig.at(b"file"), mtime=1)  # the clock is a coarse one
    with history(rig) as workspace:
        assert since(workspace, a) == []
        [change] = diff(workspace, workspace.point(a.id), workspace.point("@"), times=True)
        assert (change.status, change.attributes) == ("P", ("mtime",))


def test_attributes_only(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.chmod(b"file", 0o600)
    rig.setxattr(b"d/one", b"user.note", b"x")
    attributes.set_attributes(rig.view, rig.at(b"d/two"), uid=7, gid=8)
    rig.chmod(b"d/sub", 0o700)
    attributes.set_attributes(rig.view, rig.at(b"link"), mtime=5)
    rig.chmod(b"", 0o711)
    with history(rig) as workspace:
        changes = since(workspace, a)
        assert [(c.status, c.path, c.attributes) for c in changes] == [
            ("P", b"", ("mode",)),
            ("P", b"d/one", ("xattrs",)),
            ("P", b"d/sub", ("mode",)),
            ("P", b"d/two", ("owner", "group")),
            ("P", b"file", ("mode",)),
        ]
        assert not any(c.modified for c in changes)
        assert all(stat_of(c).added == 0 for c in changes)
        timed = diff(workspace, workspace.point(a.id), workspace.point("@"), times=True)
        assert [c.path for c in timed] == [b"", b"d/one", b"d/sub", b"d/two", b"file", b"link"]


def test_renamed_file_and_modified(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.rename(b"file", b"d/moved")
    rig.rename(b"d/one", b"ONE")
    rig.write(b"ONE", b"x")
    with history(rig) as workspace:
        changes = since(workspace, a)
        assert short(changes) == [("R", "ONE", "d/one"), ("R", "d/moved", "file")]
        assert [c.modified for c in changes] == [True, False]


def test_renamed_directory_is_one_change_and_what_changed_inside(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.rename(b"d", b"e")
    rig.write(b"e/one", b"x")
    rig.create(b"e/sub/new")
    rig.unlink(b"e/two")
    with history(rig) as workspace:
        changes = since(workspace, a)
        assert short(changes) == [
            ("D", "d/two", ""),
            ("R", "e", "d"),
            ("M", "e/one", "d/one"),
            ("A", "e/sub/new", ""),
        ]
        assert short(since(workspace, a, b"e/sub/deep")) == [("R", "e/sub/deep", "d/sub/deep")]
        assert short(since(workspace, a, b"d/sub")) == [
            ("R", "e/sub", "d/sub"),
        ]
        assert short(since(workspace, a, b"e/one")) == [("M", "e/one", "d/one")]


def test_atomic_save_is_a_modification(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.create(b"d/.one.tmp", b"1\n2\n4\n", mode=stat.S_IFREG | 0o600)
    rig.rename(b"d/.one.tmp", b"d/one")
    rig.create(b"same", b"line\n" * 10)
    rig.rename(b"same", b"file")
    with history(rig) as workspace:
        changes = since(workspace, a)
        assert [(c.status, c.path, c.attributes) for c in changes] == [("M", b"d/one", ("mode",))]


def test_save_with_a_backup_is_a_rename_and_a_new_file(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.rename(b"file", b"file~")
    rig.create(b"file", b"new\n")
    with history(rig) as workspace:
        assert short(since(workspace, a)) == [("A", "file", ""), ("R", "file~", "file")]


def test_rename_over_another_file(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.rename(b"d/two", b"file")
    with history(rig) as workspace:
        assert short(since(workspace, a)) == [("D", "file", ""), ("R", "file", "d/two")]


def test_exchange(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.rename(b"d/two", b"file", namespace.RENAME_EXCHANGE)
    with history(rig) as workspace:
        assert short(since(workspace, a)) == [("R", "d/two", "file"), ("R", "file", "d/two")]


def test_types_change(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.unlink(b"file")
    rig.symlink(b"d/one", b"file")
    rig.unlink(b"link")
    rig.mkdir(b"link")
    rig.create(b"link/x", b"x")
    rig.remove_tree(b"d")
    rig.create(b"d", b"a file now\n")
    with history(rig) as workspace:
        changes = since(workspace, a)
        assert short(changes) == [
            ("T", "d", ""),
            ("D", "d/one", ""),
            ("D", "d/sub", ""),
            ("D", "d/sub/deep", ""),
            ("D", "d/two", ""),
            ("T", "file", ""),
            ("T", "link", ""),
            ("A", "link/x", ""),
        ]
        row = changes[-3].to_json()
        assert row["old"]["type"] == "file"
        assert row["new"]["type"] == "symlink"
        assert row["new"]["target"] == "d/one"


def test_changed_symlink(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.unlink(b"link")
    rig.symlink(b"elsewhere", b"link")
    with history(rig) as workspace:
        changes = since(workspace, a)
        assert short(changes) == [("M", "link", "")]
        assert (stat_of(changes[0]).added, stat_of(changes[0]).removed) == (1, 1)


def test_hard_links(rig: Rig) -> None:
    rig.link(b"file", b"second")
    a = rig.checkpoint()
    rig.link(b"file", b"third")
    rig.unlink(b"second")
    rig.create(b"fresh", b"x\n")
    rig.link(b"fresh", b"d/fresh")
    rig.link(b"d/one", b"uno")
    rig.unlink(b"d/one")
    with history(rig) as workspace:
        changes = since(workspace, a)
        assert [(c.status, c.path, c.old_path, c.link_of) for c in changes] == [
            ("A", b"d/fresh", None, None),
            ("A", b"fresh", None, b"d/fresh"),
            ("R", b"third", b"second", None),
            ("R", b"uno", b"d/one", None),
        ]
    b = rig.checkpoint()
    rig.write(b"third", b"!")
    rig.link(b"third", b"fourth")
    rig.unlink(b"fresh")
    with history(rig) as workspace:
        changes = since(workspace, b)
        assert [(c.status, c.path, c.link_of) for c in changes] == [
            ("M", b"file", None),
            ("A", b"fourth", b"file"),
            ("D", b"fresh", b"d/fresh"),
            ("M", b"third", b"file"),
        ]
        assert [stat_of(c).added for c in changes] == [1, 0, 0, 0]


def test_rebuilt_directory_shows_only_what_differs(rig: Rig) -> None:
    """What git checkout or a package manager does: all inodes are new, most files are the same."""
    a = rig.checkpoint()
    rig.remove_tree(b"d")
    rig.mkdir(b"d")
    rig.mkdir(b"d/sub")
    rig.create(b"d/sub/deep", b"deep\n")
    rig.create(b"d/one", b"1\n2\n3\n")
    rig.create(b"d/two", b"TWO\n")
    with history(rig) as workspace:
        assert short(since(workspace, a)) == [("M", "d/two", "")]


def test_new_directory_in_the_place_of_a_renamed_one(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.rename(b"d", b"e")
    rig.mkdir(b"d")
    rig.rename(b"e/one", b"d/one")
    rig.create(b"d/two", b"two\n")
    rig.unlink(b"e/two")
    with history(rig) as workspace:
        assert short(since(workspace, a)) == [
            ("A", "d", ""),
            ("R", "d/one", "d/one"),
            ("D", "d/two", ""),
            ("A", "d/two", ""),
            ("R", "e", "d"),
        ]


def test_unlisted_directories_renamed_and_removed(rig: Rig) -> None:
    """A base directory that nobody looked into is known by what lies in the base."""
    a = rig.checkpoint()
    rig.rename(b"never", b"d/never")
    with history(rig) as workspace:
        changes = since(workspace, a)
        assert short(changes) == [("R", "d/never", "never")]
        [change] = since(workspace, a, b"d/never/below/x")
        assert (change.status, change.old_path) == ("R", b"never/below/x")
    rig.remove_tree(b"d/never")
    with history(rig) as workspace:
        assert short(since(workspace, a)) == [
            ("D", "never", ""),
            ("D", "never/below", ""),
            ("D", "never/below/x", ""),
            ("D", "never/looked", ""),
        ]


def test_directory_made_outside_is_added_with_everything_in_it(rig: Rig) -> None:
    rig.ls()
    a = rig.checkpoint()
    rig.close()
    assert rig.base is not None
    (rig.base / "outside/deep").mkdir(parents=True)
    (rig.base / "outside/deep/file").write_text("x\n")
    rig.start()
    rig.ls()
    expected = ["outside", "outside/deep", "outside/deep/file"]
    with history(rig) as workspace:
        changes = since(workspace, a)
        assert short(changes) == [("A", path, "") for path in expected]
        assert stat_of(changes[2]).added == 1
    rig.ls(b"outside/deep")
    with history(rig) as workspace:
        assert short(since(workspace, a)) == [("A", path, "") for path in expected]
    rig.restore(a)
    assert not rig.exists(b"outside")
    with history(rig) as workspace:
        assert since(workspace, a) == []
        rescue = workspace.point("@{now}")
        assert short(diff(workspace, rescue, workspace.point("@"))) == [
            ("D", path, "") for path in expected
        ]


def test_between_two_branches_of_the_timeline(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.create(b"left", b"l\n")
    left = rig.checkpoint()
    rig.restore(a)
    rig.create(b"right", b"r\n")
    with history(rig) as workspace:
        assert short(since(workspace, left)) == [("D", "left", ""), ("A", "right", "")]


def test_restricted_to_paths(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.write(b"file", b"x")
    rig.write(b"d/one", b"x")
    rig.rename(b"d/two", b"two")
    rig.create(b"dd", b"not below d")
    with history(rig) as workspace:
        assert short(since(workspace, a, b"d")) == [("M", "d/one", ""), ("R", "two", "d/two")]
        assert short(since(workspace, a, b"./file/")) == [("M", "file", "")]
        assert short(since(workspace, a, b"link")) == []
        assert len(since(workspace, a, b".")) == 4
        assert short(since(workspace, a, b"two", b"file")) == [
            ("M", "file", ""),
            ("R", "two", "d/two"),
        ]
        with pytest.raises(UnknownPathError):
            since(workspace, a, b"nowhere/x")


@pytest.mark.parametrize("path", [b"a\0b", b"..", b"file/x", b"x" * 300, b"never/" + b"y" * 300])
def test_impossible_paths(rig: Rig, path: bytes) -> None:
    a = rig.checkpoint()
    with history(rig) as workspace, pytest.raises(UnknownPathError):
        since(workspace, a, path)


def test_what_cannot_be_listed_is_an_error_or_told(tmp_path: Path, base: Path) -> None:
    (base / "d/unseen").mkdir(parents=True)
    (base / "file").write_text("x\n")
    rig = Rig(tmp_path / "store", base)
    try:
        rig.ls(b"d")
        a = rig.checkpoint()
        rig.write(b"file", b"y")
        rig.close()
        (base / "d/unseen").rmdir()
        (base / "d").rmdir()
        rig.start()
        rig.ls()
        with history(rig) as workspace:
            one, two = workspace.point(a.id), workspace.point("@")
            with pytest.raises(ContentLostError):
                diff(workspace, one, two)
            failed: list[bytes] = []
            changes = diff(workspace, one, two, failed=lambda path, error: failed.append(path))
            assert short(changes) == [
                ("D", "d", ""),
                ("D", "d/unseen", ""),
                ("M", "file", ""),
            ]
            assert failed == [b"d/unseen"]
    finally:
        rig.finish(check=False)


def test_names_that_are_not_utf8_pass_through_json(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.create(b'caf\xe9 "\n', b"x\n")
    with history(rig) as workspace:
        [change] = since(workspace, a)
        text = json.dumps(change.to_json())
        assert os.fsencode(json.loads(text)["path"]) == b'caf\xe9 "\n'


def test_special_files(rig: Rig) -> None:
    a = rig.checkpoint()
    rig.create(b"pipe", mode=stat.S_IFIFO | 0o600)
    rig.create(b"null", mode=stat.S_IFCHR | 0o666, rdev=os.makedev(1, 3))
    with history(rig) as workspace:
        changes = since(workspace, a)
        assert short(changes) == [("A", "null", ""), ("A", "pipe", "")]
        assert changes[0].to_json()["new"]["rdev"] == [1, 3]
        assert stat_of(changes[0]).new_size == 0
    b = rig.checkpoint()
    rig.unlink(b"null")
    rig.create(b"null", mode=stat.S_IFCHR | 0o666, rdev=os.makedev(1, 5))
    with history(rig) as workspace:
        assert short(since(workspace, b)) == [("M", "null", "")]


def test_large_and_binary_files_are_counted_in_bytes(rig: Rig) -> None:
    rig.create(b"big", b"x\n" * 10)
    a = rig.checkpoint()
    rig.create(b"bin", b"\0\1\2")
    rig.write(b"big", b"y\n", 9 << 20)
    with history(rig) as workspace:
        big, binary = map(stat_of, since(workspace, a))
        assert (big.added, big.new_size) == (None, (9 << 20) + 2)
        assert binary.binary
        assert (binary.old_size, binary.new_size) == (0, 3)


def test_cost_is_that_of_the_changes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records read for one change, with few and with many other files."""
    from cowfs.store.snapshot import Snapshot

    calls = 0
    plain = Snapshot.newest

    def counting(self: Snapshot, table: str, prefix: bytes) -> tuple[int, bytes] | None:
        nonlocal calls
        calls += 1
        return plain(self, table, prefix)

    costs = []
    for size in (10, 1000):
        for number in range(size):
            rig.create(b"d/many%d-%d" % (size, number), b"x")
        a = rig.checkpoint()
        rig.write(b"file", b"%d" % size)
        with history(rig) as workspace:
            calls = 0
            monkeypatch.setattr(Snapshot, "newest", counting)
            assert short(since(workspace, a)) == [("M", "file", "")]
            monkeypatch.setattr(Snapshot, "newest", plain)
            costs.append(calls)
        rig.checkpoint()
    assert costs[0] == costs[1]
