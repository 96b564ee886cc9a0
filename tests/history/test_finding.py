"""`log PATH` and `find` by example, and how much of a long history they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from unittest import mock

import pytest

from cowfs.errors import UnknownPathError, UsageError
from cowfs.service.finding import steps
from cowfs.service.finding.names import Finder, Pattern
from cowfs.service.finding.pathlog import PathLog, log_paths
from cowfs.service.finding.selection import Bound, Selection, bound_of, pattern_of
from cowfs.service.finding.steps import Event
from cowfs.service.finding.tracking import PathHistory
from cowfs.service.states import States
from cowfs.service.timeline import Timeline
from cowfs.service.verify import verify_store
from cowfs.service.workspace import ReadOnly, reading
from cowfs.volume import history as epochs
from tests.history.reads import Reads
from tests.history.states import history
from tests.support.volumes import AUTHOR, START, Rig

OpenRig = Callable[[], Rig]


@pytest.fixture
def rig(open_rig: OpenRig, base: Path) -> Rig:
    (base / "src").mkdir()
    (base / "src/a.py").write_text("a\n")
    (base / "src/b.py").write_text("b\n")
    rig = open_rig()
    rig.ls(b"src")
    return rig


def told(workspace: ReadOnly, path: bytes) -> list[tuple[int, tuple[str, ...], bytes | None]]:
    """(epoch, what happened, old path) of each event."""
    states = States(workspace.reader, workspace.branch.head)
    found = PathHistory(workspace, states, path).events()
    return [(epoch, event.happened, event.old_path) for epoch, events in found for event in events]


def log(
    workspace: ReadOnly, *paths: bytes, limit: int | None = None, where: Selection | None = None
) -> PathLog:
    return log_paths(Timeline(workspace), list(paths), limit, where or Selection())


# -- one path -------------------------------------------------------------------------------


def test_a_rename_is_followed_back(rig: Rig) -> None:
    rig.write(b"src/a.py", b"x")
    one = rig.checkpoint()
    rig.rename(b"src/a.py", b"src/c.py")
    rig.chmod(b"src/c.py", 0o755)
    two = rig.checkpoint()
    rig.rename(b"src", b"lib")
    three = rig.checkpoint()
    with history(rig) as workspace:
        assert told(workspace, b"lib/c.py") == [
            (three.epoch, ("renamed",), b"src/c.py"),
            (two.epoch, ("renamed", "attributes"), b"src/a.py"),
            (one.epoch, ("modified",), None),
        ]
        assert log(workspace, b"lib/c.py").at_start == {b"lib/c.py": [b"src/a.py"]}
        left = told(workspace, b"src/a.py")
        assert left == [(two.epoch, ("renamed", "attributes"), b"src/a.py"), left[1]]
        assert left[1] == (one.epoch, ("modified",), None)


def test_a_path_that_was_several_files(rig: Rig) -> None:
    rig.create(b"f", b"one")
    one = rig.checkpoint()
    rig.unlink(b"f")
    two = rig.checkpoint()
    rig.create(b"f", b"two")
    three = rig.checkpoint()
    with history(rig) as workspace:
        rows = log(workspace, b"f").rows
    assert [(row.row.id, row.events[0][1].happened) for row in rows] == [
        (three.id, ("created",)),
        (two.id, ("deleted",)),
        (one.id, ("created",)),
    ]
    assert [row.events[0][1].again for row in rows] == [True, False, False]


def test_a_file_that_is_saved_by_a_rename_is_the_same_file(rig: Rig) -> None:
    made = []
    for number in range(3):
        rig.create(b"src/.tmp", b"version %d" % number)
        rig.rename(b"src/.tmp", b"src/a.py")
        made.append(rig.checkpoint())
    with history(rig) as workspace:
        assert told(workspace, b"src/a.py") == [
            (record.epoch, ("modified",), None) for record in reversed(made)
        ]
        with pytest.raises(UnknownPathError):
            log(workspace, b"src/.tmp")


def test_the_same_bytes_again_are_no_change(rig: Rig) -> None:
    rig.create(b"src/.tmp", b"a\n")
    rig.rename(b"src/.tmp", b"src/a.py")
    rig.checkpoint()
    with history(rig) as workspace:
        assert told(workspace, b"src/a.py") == []


def test_what_is_below_a_directory(rig: Rig) -> None:
    rig.write(b"src/a.py", b"x")
    rig.create(b"other")
    one = rig.checkpoint()
    rig.write(b"other", b"x")
    rig.checkpoint()
    rig.mkdir(b"src/d")
    rig.create(b"src/d/f")
    rig.rename(b"other", b"src/other")
    rig.unlink(b"src/b.py")
    three = rig.checkpoint()
    with history(rig) as workspace:
        rows = log(workspace, b"src").rows
        assert [row.row.id for row in rows] == [three.id, one.id]
        assert rows[0].events[0][1].inside == {"created": 2, "renamed": 1, "deleted": 1}
        assert rows[1].events[0][1].inside == {"modified": 1}
        with mock.patch.object(steps, "INSIDE_COUNTED", 2):
            (event,) = (event for _, event in log(workspace, b"src").rows[0].events)
        assert event.inside_more
        assert sum((event.inside or {}).values()) == 2


def test_a_restore_makes_a_tree(rig: Rig) -> None:
    one = rig.checkpoint()
    rig.write(b"src/a.py", b"2")
    two = rig.checkpoint()
    rig.restore(one)
    rig.write(b"src/a.py", b"3")
    three = rig.checkpoint()
    rig.write(b"src/b.py", b"4")
    with history(rig) as workspace:
        rows = {row.row.id: row.row.parent for row in log(workspace, b"src/a.py").rows}
        assert rows == {three.id: None, two.id: None}
        both = {row.row.id: row.row.parent for row in log(workspace, b"src/a.py", b"src/b.py").rows}
        assert both == {"@": three.id, three.id: None, two.id: None}


def test_only_some_of_them(rig: Rig) -> None:
    made = []
    for number in range(6):
        rig.save(b"f", b"%d" % number)
        made.append(rig.checkpoint(f"Step {number}", f"label-{number}" if number == 4 else ""))
    with history(rig) as workspace:

        def ids(**kwargs: object) -> list[str]:
            where = Selection(**kwargs)  # type: ignore[arg-type]
            return [row.row.id for row in log(workspace, b"f", where=where).rows]

        newest = [record.id for record in reversed(made)]
        assert ids() == newest
        assert ids(pattern=pattern_of("step [12]", ignore_case=True)) == newest[3:5]
        assert ids(pattern=pattern_of("step", ignore_case=False)) == []
        assert ids(pattern=pattern_of("label", ignore_case=False)) == [made[4].id]
        assert ids(kinds=("rescue",)) == []
        assert ids(kinds=("rescue", "manual")) == newest
        bound = bound_of(workspace, made[2].id, 0, earliest=True)
        assert bound == Bound(epoch=made[2].epoch)
        assert ids(since=bound) == newest[:4]
        assert ids(until=bound) == newest[3:]
        assert ids(since=Bound(time=made[3].time)) == newest[:3]
        assert ids(until=Bound(time=made[3].time)) == newest[2:]
        assert log(workspace, b"f", limit=2).more
        assert not log(workspace, b"f", limit=6).more


def test_times_of_a_bound(rig: Rig) -> None:
    minute = 60_000_000_000
    now = 1_800_000_000 * 1_000_000_000
    with history(rig) as workspace:
        ago = bound_of(workspace, "3 min ago", now, earliest=True)
        first = bound_of(workspace, "10:30", now, earliest=True)
        last = bound_of(workspace, "10:30", now, earliest=False)
    assert ago == Bound(time=now - 3 * minute)
    assert first.time is not None
    assert last.time is not None
    assert first.time % minute == 0
    assert 59_000_000_000 <= last.time - first.time < minute


def test_a_wrong_pattern() -> None:
    with pytest.raises(UsageError):
        pattern_of("(", ignore_case=False)
    for name in (b"", b"/", b"a/../b"):
        with pytest.raises(UsageError):
            Pattern(name)


# -- names ----------------------------------------------------------------------------------


def test_what_was_made_and_deleted_between_two_checkpoints_is_nowhere(rig: Rig) -> None:
    rig.create(b"brief")
    rig.unlink(b"brief")
    rig.checkpoint()
    rig.create(b"kept")
    one = rig.checkpoint()
    rig.unlink(b"kept")
    with history(rig) as workspace:

        def find(name: bytes) -> list[tuple[bytes, str | None]]:
            finder = Finder(workspace, States(workspace.reader, workspace.branch.head))
            found = finder.find(Pattern(name))
            return [(row.path, row.checkpoint.id if row.checkpoint else None) for row in found]

        assert find(b"brief") == []
        assert find(b"kept") == [(b"kept", one.id)]
        assert find(b"k*t") == [(b"kept", one.id)]
        assert find(b"src/[ab].py") == [(b"src/a.py", None), (b"src/b.py", None)]


def test_the_newest_checkpoint_of_any_line_is_told(rig: Rig) -> None:
    rig.create(b"f")
    one = rig.checkpoint()
    rig.write(b"src/a.py", b"x")
    rescue = rig.restore(START).rescue
    rig.checkpoint()
    with history(rig) as workspace:
        finder = Finder(workspace, States(workspace.reader, workspace.branch.head))
        (found,) = finder.find(Pattern(b"f"), deleted=True)
    assert found.checkpoint is not None
    assert found.checkpoint.id == rescue.id
    assert one.epoch < rescue.epoch


# -- long histories -------------------------------------------------------------------------

COUNT = 10_000


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A store with 10,000 checkpoints, each of which changed two files, and its base directory."""
    top = tmp_path_factory.mktemp("long")
    (top / "base").mkdir()
    rig = Rig(top / "store", top / "base")
    try:
        rig.mkdir(b"hot")
        rig.mkdir(b"cold")
        for number in range(COUNT):
            rig.save(b"hot/edited", b"%d" % number)
            rig.create(b"hot/tmp", b"%d" % number)
            rig.rename(b"hot/tmp", b"hot/saved")
            if number % 1000 == 0:
                rig.create(b"cold/%d" % number)
            epochs.seal(rig.volume, AUTHOR, message=f"step {number}")
            if number % 200 == 0:
                rig.volume.sync()
        rig.close()
        assert rig.base_fd is not None
        yield rig.store, rig.base_fd
    finally:
        rig.finish(check=False)  # the last test does that


def test_the_log_of_a_path_reads_its_versions_only(
    long_store: tuple[Path, int], reads: Reads
) -> None:
    with reading(*long_store) as workspace:

        def work(path: bytes, limit: int) -> tuple[int, list[Event]]:
            states = States(workspace.reader, workspace.branch.head)
            reads.count = 0
            found = [*islice(PathHistory(workspace, states, path).events(), limit)]
            return reads.count, [event for _, events in found for event in events]

        count, events = work(b"hot/edited", 25)
        assert [event.happened for event in events] == [("modified",)] * 25
        assert count < COUNT + 100 * 25
        count, events = work(b"hot/saved", 25)
        assert [event.happened for event in events] == [("modified",)] * 25
        assert count < 5 * COUNT + 100 * 25
        count, events = work(b"cold/5000", 25)
        assert [event.happened for event in events] == [("created",)]
        assert count < 200
        count, events = work(b"cold", 25)
        assert [event.inside for event in events] == [{"created": 1}] * 10
        assert count < 200 * 11
        count, events = work(b"", 25)
        assert [event.inside for event in events] == [{"modified": 2}] * 25
        assert count < 6 * COUNT + 200 * 25


def test_a_name_is_sought_in_each_directory(long_store: tuple[Path, int], reads: Reads) -> None:
    with reading(*long_store) as workspace:
        states = States(workspace.reader, workspace.branch.head)
        reads.count = 0
        (found,) = Finder(workspace, states).find(Pattern(b"edited"))
        assert found.path == b"hot/edited"
        assert reads.count < 100


def test_verify_reads_each_record_a_few_times(long_store: tuple[Path, int], reads: Reads) -> None:
    """Also of a name that every checkpoint gave to another file."""
    with reading(*long_store) as workspace:
        records = sum(workspace.reader.count(table) for table in workspace.store.tables)
        reads.count = 0
        assert verify_store(workspace.reader, workspace.base).problems == []
        assert reads.count < 6 * records
