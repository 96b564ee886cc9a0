"""What is changed and brought back: edits by tools, by people, by several at once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tests.cases.workspace import Workspace, git, repository, shell
from tests.cli.command import Cowfs
from tests.mount.calls import write_file
from tests.mount.states import fill_base, make_first, make_second
from tests.tools.tool import environment, started

SECOND = 1_000_000_000


def test_case_01_changes_by_the_shell_only(space: Workspace) -> None:
    """A turn changes files only through a here-document, `sed -i` and `rm`."""
    (space.top / "edited").write_text("one\ntwo\n")
    (space.top / "gone").write_text("gone\n")
    first, before = space.state(), space.checkpoint()
    shell(space.top, "cat > made <<'EOF'\n$HOME\nEOF\nsed -i s/one/three/ edited\nrm gone\n")
    assert (space.top / "made").read_text() == "$HOME\n"
    assert space.diff() == [("M", "edited"), ("D", "gone"), ("A", "made")]
    second = space.state()
    assert space.preview(before) == [("M", "edited"), ("A", "gone"), ("D", "made")]
    space.restore(before)
    space.must_be(first)
    space.run("undo")
    space.must_be(second)


def test_case_02_created_and_deleted_since(space: Workspace) -> None:
    """One file is created and deleted after a checkpoint; another is deleted, made anew with
    other content and mode, and deleted again."""
    old, new = space.top / "old", space.top / "new"
    write_file(old, b"of the checkpoint", 0o640)
    os.utime(old, ns=(SECOND, 10**18 + 123_456_789))
    first, before = space.state(), space.checkpoint()
    new.write_text("not there yet")
    old.unlink()
    write_file(old, b"made anew", 0o755)
    between = space.checkpoint()
    new.unlink()
    old.unlink()
    assert space.diff(before, between) == [("A", "new"), ("M", "old")]
    assert space.diff(between) == [("D", "new"), ("D", "old")]
    assert space.diff(before) == [("D", "old")]
    assert space.show(between, "new") == b"not there yet"
    space.restore(before)
    space.must_be(first)
    assert not new.exists()
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    space.restore(between, "old", "new")
    assert (old.read_bytes(), new.read_text()) == (b"made anew", "not there yet")
    assert stat.S_IMODE(old.stat().st_mode) == 0o755


def test_case_02_within_one_epoch(space: Workspace) -> None:
    """Case 2 without a checkpoint between: nothing is left of what came between."""
    write_file(space.top / "old", b"of the checkpoint", 0o640)
    first, before = space.state(), space.checkpoint()
    for number in range(3):
        write_file(space.top / "new", b"%d" % number)
        os.unlink(space.top / "new")
        os.unlink(space.top / "old")
        write_file(space.top / "old", b"anew %d" % number, 0o755)
    os.unlink(space.top / "old")
    assert space.diff() == [("D", "old")]
    space.restore(before)
    space.must_be(first)


def test_case_03_a_person_edits_the_same_file(space: Workspace) -> None:
    """The agent edits a file, a person edits the same file, somebody restores."""
    file = space.top / "file"
    write_file(file, b"one\n" * 30_000)
    first, before = space.state(), space.checkpoint()
    shell(space.top, "sed -i 's/one/by the agent/' file")
    person = os.urandom(100_000)
    write_file(file, person, 0o600)
    os.utime(file, ns=(SECOND, 10**18 + 7))
    edited = space.state()
    assert space.preview(before) == [("M", "file")]
    rescue = space.restore(before)
    space.must_be(first)
    assert space.show(rescue, "file") == person
    space.run("undo")
    space.must_be(edited)


def test_case_04_two_sessions_in_one_tree(space: Workspace) -> None:
    """Two sessions work in one tree; the one that changed nothing restores."""
    for name in ("a", "b", "c"):
        write_file(space.top / name, name.encode() * 10)
    first, before = space.state(), space.checkpoint()
    worker = "echo by the other >> a; rm b; mkdir d; echo new > d/e; echo ready; sleep 100"
    with started(["sh", "-ec", worker], space.top, environment(space.top)) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        theirs = space.state()
        assert space.preview(before) == [("M", "a"), ("A", "b"), ("D", "d"), ("D", "d/e")]
        space.must_be(theirs)  # looking changed nothing
        rescue = space.restore(before)
        space.must_be(first)
    assert space.show(rescue, "a") == b"a" * 10 + b"by the other\n"
    assert space.diff(before, rescue) == [("M", "a"), ("D", "b"), ("A", "d"), ("A", "d/e")]
    space.run("undo")
    space.must_be(theirs)


def test_case_07_an_old_checkpoint(cowfs: Cowfs, project: Path) -> None:
    """A checkpoint of weeks ago is restored, some files having been deleted since on purpose."""
    fill_base(project)
    space = Workspace(cowfs, project)
    make_first(space.top)
    for number in range(20):
        write_file(space.top / f"obsolete{number}", b"%d" % number)
    first, before = space.state(), space.checkpoint("--label", "long-ago")
    for number in range(20):
        os.unlink(space.top / f"obsolete{number}")
        write_file(space.top / "work", b"day %d" % number)
        if number % 4 == 0:
            space.checkpoint("-m", f"day {number}")
    make_second(space.top)
    last = space.state()
    document = space.run("restore", "long-ago", "--dry-run")
    back = {row["path"] for row in document["changes"] if row["status"] == "A"}
    assert {f"obsolete{number}" for number in range(20)} <= back
    assert document["counts"]["added"] == len(back)
    # What comes back either lies elsewhere now, with all that is in it, or is counted.
    moved = [row["path"] for row in document["changes"] if row["status"] == "R"]
    missing = {name for name in first.entries if name not in last.entries}
    missing -= {name for name in missing if any(f"{name}/".startswith(f"{m}/") for m in moved)}
    assert missing == back
    space.restore("long-ago")
    space.must_be(first)
    assert space.diff(before) == []
    space.run("undo")
    space.must_be(last)


def test_case_09_tracked_now_absent_then(space: Workspace) -> None:
    """A file exists now, is tracked by git, and was absent at the checkpoint."""
    repository(space.top)
    first, before = space.state(), space.checkpoint()
    (space.top / "later").write_text("later\n")
    git(space.top, "add", "later")
    git(space.top, "commit", "-qm", "second")
    second = space.state()
    space.restore(before)
    space.must_be(first)
    assert not (space.top / "later").exists()
    assert git(space.top, "status", "--porcelain", "-uno") == ""
    space.run("undo")
    space.must_be(second)
    # With the repository left alone, git still tracks it, and it is gone all the same.
    space.restore(before, "--exclude", ".git")
    assert not (space.top / "later").exists()
    assert git(space.top, "status", "--porcelain", "-uno").strip() == "D later"
    git(space.top, "fsck", "--strict", "--no-dangling")
