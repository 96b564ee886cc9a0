"""What becomes one operation, under which paths, and in which transaction group."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.errors import DamagedRecordError, StoreFullError
from cowfs.format.audit import CUT, MODE, OUTSIDE, REPLACED, UNKNOWN
from cowfs.service import restore as restoring
from cowfs.store.group import TransactionGroup
from cowfs.store.snapshot import Snapshot
from cowfs.volume.history import Author
from cowfs.volume.namespace import RENAME_EXCHANGE
from cowfs.volume.view import View
from tests.audit.acting import Actor, operations, processes, sleeper, stored, told
from tests.support.volumes import AUTHOR, Rig


@pytest.fixture
def actor(volume: Rig) -> Actor:
    return Actor(volume)


def test_many_writes_are_one(volume: Rig, actor: Actor) -> None:
    volume.create(b"f")
    volume.volume.sync()
    actor.open(b"f")
    for at in range(100):
        actor.write(b"f", b"x" * 10, at * 10)
    actor.close(b"f")
    ((record, operation),) = operations(volume)
    assert (operation.count, operation.size, operation.name) == (100, 1000, b"f")
    assert operation.ino == volume.at(b"f").ino
    assert record.epoch == volume.view.head
    assert processes(volume)[record.process].pid == os.getpid()


def test_making_and_writing_is_one(volume: Rig, actor: Actor) -> None:
    actor.create(b"f", b"content")
    actor.chmod(b"f", 0o600)
    ((_, operation),) = operations(volume)
    assert (told(volume), operation.size) == ([("made", "f")], 7)
    assert operation.what == MODE


def test_truncating_and_writing_is_one(volume: Rig, actor: Actor) -> None:
    volume.create(b"f", b"old")
    volume.volume.sync()
    actor.open(b"f")
    actor.truncate(b"f", 0)
    actor.write(b"f", b"new")
    ((_, operation),) = operations(volume)
    assert (told(volume), operation.what) == ([("wrote", "f")], CUT)


def test_attributes_and_then_content_is_content(volume: Rig, actor: Actor) -> None:
    volume.create(b"f", b"old")
    actor.chmod(b"f", 0o600)
    assert told(volume) == [("attributes", "f")]
    actor.open(b"f")
    actor.chmod(b"f", 0o644)
    actor.write(b"f", b"new")
    assert told(volume) == [("attributes", "f"), ("wrote", "f")]


def test_a_group_ends_what_is_folded(volume: Rig, actor: Actor) -> None:
    actor.create(b"f", b"1")
    volume.volume.sync()
    actor.open(b"f")
    actor.write(b"f", b"2")
    assert told(volume) == [("made", "f"), ("wrote", "f")]


def test_a_rename_ends_it_too(volume: Rig, actor: Actor) -> None:
    actor.create(b"f", b"1")
    actor.open(b"f")
    actor.rename(b"f", b"g")
    actor.write(b"g", b"2")
    assert told(volume) == [("made", "f"), ("renamed", "f", "g"), ("wrote", "g")]


def test_a_rename_over_another_file(volume: Rig, actor: Actor) -> None:
    volume.create(b"old", b"1")
    actor.create(b"new", b"2")
    actor.rename(b"new", b"old")
    assert told(volume) == [("made", "new"), ("renamed", "new", "old")]
    assert operations(volume)[1][1].what == REPLACED


def test_names_that_are_exchanged(volume: Rig, actor: Actor) -> None:
    volume.mkdir(b"d")
    volume.create(b"d/f")
    volume.mkdir(b"e")
    actor.rename(b"d", b"e", RENAME_EXCHANGE)
    actor.chmod(b"e/f", 0o600)
    assert told(volume) == [("exchanged", "d", "e"), ("attributes", "e/f")]


def test_a_rename_that_does_nothing(volume: Rig, actor: Actor) -> None:
    """Of a name to itself, and of one name of a file to another one (rename(2))."""
    volume.create(b"f")
    volume.link(b"f", b"g")
    actor.rename(b"f", b"f")
    actor.rename(b"f", b"g")
    assert told(volume) == []


def test_links(volume: Rig, actor: Actor) -> None:
    actor.create(b"f")
    actor.link(b"f", b"g")
    actor.unlink(b"f")
    assert told(volume) == [("made", "f"), ("linked", "g", "f"), ("removed", "f")]


def test_a_tree_that_is_removed_has_its_paths(volume: Rig, actor: Actor) -> None:
    for path in (b"a", b"a/b", b"a/b/c"):
        volume.mkdir(path)
    for path in (b"a/x", b"a/b/y", b"a/b/c/z"):
        volume.create(path)
    volume.volume.sync()
    volume.evict()
    actor.remove_tree(b"a")
    assert {path for _, path in told(volume)} == {"a/b/c/z", "a/b/c", "a/b/y", "a/b", "a/x", "a"}


def test_a_directory_renamed_in_between(volume: Rig, actor: Actor) -> None:
    actor.mkdir(b"a")
    actor.mkdir(b"a/b")
    actor.create(b"a/b/one")
    volume.create(b"a/b/other")
    actor.rename(b"a", b"z")
    actor.create(b"z/b/two")
    actor.chmod(b"z/b/other", 0o600)
    assert told(volume) == [
        ("made", "a"),
        ("made", "a/b"),
        ("made", "a/b/one"),
        ("renamed", "a", "z"),
        ("made", "z/b/two"),
        ("attributes", "z/b/other"),
    ]


def test_a_directory_made_again_under_its_name(volume: Rig, actor: Actor) -> None:
    actor.mkdir(b"a")
    actor.create(b"a/f")
    actor.remove_tree(b"a")
    actor.mkdir(b"b")
    actor.rename(b"b", b"a")
    actor.create(b"a/g")
    assert told(volume)[-1] == ("made", "a/g")


def test_what_has_no_name_is_not_told(volume: Rig, actor: Actor) -> None:
    actor.create(b"f")
    handle = volume.open(b"f")
    actor.open(b"f")
    inode = volume.at(b"f")
    actor.unlink(b"f")
    handle.write(0, b"gone")
    actor.audit.wrote(inode, 4)
    actor.audit.changed(actor.pid, inode, MODE)
    assert told(volume) == [("made", "f"), ("removed", "f")]
    handle.close()


def test_a_file_of_the_base_that_was_just_listed(base: Path, open_rig: Callable[[], Rig]) -> None:
    """Its name is not in the store yet: it is found by its number when the log is read."""
    (base / "docs").mkdir()
    (base / "docs" / "readme").write_text("old")
    rig = open_rig()
    actor = Actor(rig)
    actor.open(b"docs/readme")
    actor.write(b"docs/readme", b"new")
    actor.chmod(b"docs", 0o700)
    assert told(rig) == [("wrote", "docs/readme"), ("attributes", "docs")]


def test_damage_is_no_obstacle(volume: Rig, actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done is done, and must not fail since its path cannot be told."""
    for path in (b"a", b"a/b"):
        volume.mkdir(path)
    volume.create(b"a/b/f")
    volume.volume.sync()
    volume.evict()
    directory, inode = volume.at(b"a/b"), volume.at(b"a/b/f")
    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "links", damaged)
        actor.audit.changed(actor.pid, inode, MODE)
        patch.setattr(View, "parent_of", lambda self, inode: inode.ino)
        actor.audit.removed(actor.pid, directory.ino, b"g", inode)
    volume.chmod(b"a/b/f", 0o600)
    rows = operations(volume)
    assert [operation.name for _, operation in rows] == [b"", b"g"]
    assert told(volume)[0] == ("attributes", "a/b/f")


def damaged(self: Snapshot, ino: int) -> list[tuple[int, bytes]]:
    raise DamagedRecordError(what="link", detail="damaged")


def test_the_top(volume: Rig, actor: Actor) -> None:
    actor.chmod(b"", 0o700)
    assert told(volume) == [("attributes", "")]


def test_two_processes_side_by_side(volume: Rig, actor: Actor) -> None:
    with sleeper() as pid:
        other = Actor(volume, pid)
        actor.create(b"mine")
        other.create(b"other")
        for at in range(5):
            actor.open(b"mine")
            other.open(b"other")
            actor.write(b"mine", b"x", at)
            actor.write(b"other", b"x", at)
        rows = operations(volume)
    known = processes(volume)
    by_name = {operation.name: known[record.process] for record, operation in rows}
    assert len(rows) == 2
    assert by_name[b"mine"].pid == os.getpid()
    assert (by_name[b"other"].pid, by_name[b"other"].name) == (pid, "sleep")
    assert by_name[b"other"].command == b"sleep\x0060\0"
    assert known[by_name[b"other"].parent].pid == os.getpid()


def test_the_last_opener_writes(volume: Rig, actor: Actor) -> None:
    """Until it closes: then it is the one before."""
    volume.create(b"f")
    volume.volume.sync()
    with sleeper() as pid:
        actor.open(b"f")
        Actor(volume, pid).open(b"f")
        actor.write(b"f", b"1")
        actor.close(b"f")
        actor.write(b"f", b"2")
        rows = operations(volume)
    assert [processes(volume)[record.process].pid for record, _ in rows] == [pid, os.getpid()]


def test_nobody_knows_who(volume: Rig, actor: Actor) -> None:
    """A file that nobody has open, and a process of another pid namespace."""
    volume.create(b"f")
    actor.write(b"f", b"1")
    actor.pid = 0
    actor.create(b"g")
    assert {record.process for record in stored(volume)} == {UNKNOWN}


def test_a_large_burst_is_several_records(volume: Rig, actor: Actor) -> None:
    for at in range(4):
        actor.mkdir(b"d%d" % at)
        for number in range(300):
            actor.create(b"d%d/%d" % (at, number))
    rows = stored(volume)
    assert len(rows) == 3
    assert [path for _, path in told(volume)][-1] == "d3/299"
    assert all(len(row.directories) <= 4 for row in rows)


def test_a_restore_is_one_operation_of_who_asked(volume: Rig, actor: Actor) -> None:
    actor.create(b"f", b"1")
    one = volume.checkpoint()
    actor.create(b"g", b"2")
    volume.restore(one)
    volume.undo()
    volume.redo()
    rows = operations(volume)[2:]
    assert told(volume)[2:] == [("restored", ""), ("undone", ""), ("redone", "")]
    assert rows[0][0].detail == one.id
    epochs = [record.epoch for record, _ in rows]
    assert epochs[-1] == volume.view.head
    assert {processes(volume)[record.process].user for record, _ in rows} == {AUTHOR.user}


def test_a_restore_of_paths(volume: Rig, actor: Actor) -> None:
    actor.mkdir(b"d")
    actor.create(b"d/f", b"1")
    one = volume.checkpoint()
    actor.unlink(b"d/f")
    volume.restore_paths(one, [b"d/f"])
    assert told(volume)[-1] == ("restored", "d/f")
    actor.chmod(b"d/f", 0o600)
    assert told(volume)[-1] == ("attributes", "d/f")


def test_a_restore_that_cannot_be_written_is_not_told(
    volume: Rig, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor who asked for it; what comes after finds its process in the store."""
    actor.create(b"f")
    one = volume.checkpoint()
    volume.volume.sync()
    actor.audit.processes._by_number.clear()
    actor.audit.processes._by_pid.clear()

    def full(group: TransactionGroup, timeout: float | None = None) -> None:
        raise StoreFullError(path="store", detail="full")

    with monkeypatch.context() as patch:
        patch.setattr(volume.volume.writer, "submit", volume.volume.writer._queue.append)
        patch.setattr(volume.volume.writer, "wait", full)
        author = Author(os.getuid(), "me", os.getpid(), "test")
        with pytest.raises(StoreFullError):
            restoring.restore(volume.engine, author, one.id)
    actor.create(b"h")
    assert told(volume) == [("made", "f"), ("made", "h")]
    assert all(row.process in processes(volume) for row in stored(volume))


def test_what_is_adopted_is_of_somebody_outside(base: Path, open_rig: Callable[[], Rig]) -> None:
    (base / "kept").write_text("1")
    (base / "gone").write_text("1")
    rig = open_rig()
    rig.tree()
    rig.close()
    (base / "kept").write_text("changed")
    (base / "gone").unlink()
    (base / "new").write_text("1")
    rig.start()
    rig.tree()
    rows = stored(rig)
    assert {row.process for row in rows} == {OUTSIDE}
    assert sorted(told(rig)) == [("made", "new"), ("removed", "gone"), ("wrote", "kept")]
    actor = Actor(rig)
    actor.create(b"mine")
    assert stored(rig)[-1].epoch > rows[-1].epoch


def test_a_crash_leaves_what_is_there(volume: Rig, actor: Actor) -> None:
    """The log is in the same transaction as the changes."""
    actor.create(b"kept", b"1")
    volume.volume.sync()
    actor.create(b"lost", b"2")
    volume.volume.audit.freeze(volume.volume.extra)
    volume.crash()
    volume.start()
    assert told(volume) == [("made", "kept")]
    assert volume.ls() == [b"kept"]


def test_numbers_grow_when_the_clock_goes_back(
    volume: Rig, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor.create(b"one")
    volume.volume.sync()
    monkeypatch.setattr("cowfs.volume.audit.time.time_ns", lambda: 1_000_000_000)
    actor.create(b"two")
    actor.create(b"three")
    assert [path for _, path in told(volume)] == ["one", "two", "three"]


def test_another_life_goes_on_counting(volume: Rig, actor: Actor) -> None:
    actor.create(b"one")
    volume.reopen()
    Actor(volume).create(b"two")
    assert told(volume) == [("made", "one"), ("made", "two")]
    known = processes(volume)
    first, second = (row.process for row in stored(volume))
    assert first < second
    assert known[first].pid == known[second].pid == os.getpid()
