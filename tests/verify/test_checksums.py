"""Records whose checksum is wrong: who is hit, what goes on, what a repair does with them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from cowfs.errors import DamagedRecordError
from cowfs.format import keys
from cowfs.service.finding.names import Finder, Pattern
from cowfs.service.finding.tracking import PathHistory
from cowfs.service.states import States
from cowfs.service.timeline import timeline
from cowfs.service.workspace import reading
from cowfs.store.env import TABLES, open_store
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader, Snapshot
from cowfs.tree.changes import touched_between
from tests.support.volumes import Rig
from tests.verify.sample import Hands, Sample
from tests.verify.test_fields import prepare, target
from tests.verify.test_repair import mend, readable, rows

SEALED = [table for table in TABLES if table not in ("block", "meta")]


def key_of(hands: Hands, table: str) -> bytes:
    return hands.rows(table)[-1][0] if table == "change" else target(hands, table)


def flip(data: bytes, *bits: int) -> bytes:
    whole = int.from_bytes(data, "big")
    for bit in bits:
        whole ^= 1 << (bit % (8 * len(data)))
    return whole.to_bytes(len(data), "big")


def falsify(sample: Sample, table: str, *bits: int) -> bytes:
    """Flip bits of the record of a table that `target` chooses; returns its key."""
    with sample.open() as hands:
        prepare(hands, table)
        key = key_of(hands, table)
        hands.store(table, key, flip(hands.stored(table, key), *bits))
    return key


HIT: dict[str, tuple[set[str], set[str]]] = {
    "inode": ({"now"}, {"fresh"}),
    "dirent": ({"now"}, {"fresh"}),
    "link": ({"now"}, {"fresh"}),
    "xattr": ({"one", "two", "lost", "now"}, {"src/main", "src/alias"}),
    "extent": ({"now"}, {"fresh"}),
    "base": (set(), {"docs/readme"}),
    "origin": (set(), {"docs/readme"}),
    "epoch": ({"two"}, set()),
    "change": ({"now"}, {"fresh"}),
    "checkpoint": ({"two"}, set()),
    "label": ({"one"}, set()),
    "branch": ({"now"}, set()),
    "hardlink": (set(), set()),
    "orphan": (set(), {"three"}),
    "operation": (set(), set()),
    "process": (set(), set()),
    "audit": (set(), set()),
    "session": ({"one", "two"}, set()),
    "transcript": ({"one", "two"}, set()),
    "piece": ({"two"}, set()),
    "context": ({"two"}, set()),
}
"""Checkpoints and paths that a damaged record is said to hit."""


@pytest.mark.parametrize("table", SEALED)
def test_it_is_said_what_is_hit(sample: Sample, table: str) -> None:
    key = falsify(sample, table, 3, 40)
    (found,) = [p for p in sample.verify().problems if p.check == "record-checksum"]
    assert (found.table, found.thing) == (table, keys.thing(table, key))
    checkpoints, paths = HIT[table]
    assert {sample.names[name] for name in found.checkpoints} == checkpoints
    assert set(found.paths) == paths


@pytest.mark.parametrize("table", SEALED)
@pytest.mark.parametrize("bit", [0, 31, 35])
def test_one_bit_is_turned_back(sound_sample: Sample, sample: Sample, table: str, bit: int) -> None:
    """Of the checksum and, where there is one, of the value."""
    with sample.open() as hands:
        prepare(hands, table)
    before = rows(sample)
    falsify(sample, table, bit)
    done = mend(sample)
    assert [action.how for action in done.actions if action.table == table] == ["restored"]
    assert sample.verify().problems == []
    assert rows(sample) == before


@pytest.mark.parametrize("table", SEALED)
def test_one_bit_of_a_key_is_turned_back(sample: Sample, table: str) -> None:
    with sample.open() as hands:
        prepare(hands, table)
    before = rows(sample)
    with sample.open() as hands:
        key = key_of(hands, table)
        stored = hands.stored(table, key)
        hands.drop(table, key)
        hands.store(table, flip(key, 17), stored)
    done = mend(sample)
    assert any(action.how == "restored" for action in done.actions)
    assert sample.verify().problems == []
    assert rows(sample) == before


REBUILT = {"dirent", "link", "change", "epoch", "label", "operation", "base", "origin", "hardlink"}
REBUILT |= {"orphan", "checkpoint", "branch"}
"""Tables of which more damage than a bit is undone, by what others tell, or does not matter."""


@pytest.mark.parametrize("table", SEALED)
def test_more_than_one_bit(sample: Sample, table: str) -> None:
    """What others tell is rebuilt, the rest is marked; everything else stays what it was."""
    others = readable(sample.copy(sample.store.parent / "sound"))
    falsify(sample, table, 3, 40)
    done = mend(sample)
    report = sample.verify()
    assert report.problems == []
    marked = {action.table for action in done.actions if action.how == "marked"}
    if table == "piece":  # there the conversation ends
        assert marked == {"piece", "transcript", "context"}
    else:
        assert marked == (set() if table in REBUILT else {table})
    if table in REBUILT:
        assert readable(sample) == others
    assert mend(sample).actions == []


def fresh(sample: Sample) -> Rig:
    return Rig(sample.store, sample.base)


@pytest.mark.parametrize("table", ["inode", "xattr", "extent"])
def test_what_is_lost_is_an_error_of_that_file(sample: Sample, table: str) -> None:
    """Before a repair and after it."""
    falsify(sample, table, 3, 40)
    hit = "src/main" if table == "xattr" else "fresh"
    for _ in range(2):
        with open_for_looking(sample) as (reader, head):
            snapshot = Snapshot(reader, head)
            ino = sample.inos[hit]
            with pytest.raises(DamagedRecordError):
                look[table](snapshot, ino)
            for path, other in sample.inos.items():
                if other != ino and path not in ("three",):
                    assert snapshot.inode(other) is not None
                    snapshot.xattrs(other)
        mend(sample)


look: dict[str, Callable[[Snapshot, int], object]] = {
    "inode": lambda snapshot, ino: snapshot.inode(ino),
    "xattr": lambda snapshot, ino: snapshot.xattrs(ino),
    "extent": lambda snapshot, ino: [snapshot.block(digest) for _, digest in snapshot.extents(ino)],
}


class open_for_looking:  # noqa: N801
    """A reader of a sample, and the lineage of its head."""

    def __init__(self, sample: Sample) -> None:
        self._store = open_store(sample.store, writable=False)
        self._reader = Reader(self._store)

    def __enter__(self) -> tuple[Reader, Lineage]:
        return self._reader, Lineage(((0, 1), (4, 4)))

    def __exit__(self, *exc: object) -> None:
        self._reader.close()
        self._store.close()


def test_a_directory_shows_its_other_names(sample: Sample) -> None:
    falsify(sample, "dirent", 3, 40)
    damaged: list[bytes] = []
    with open_for_looking(sample) as (reader, head):
        snapshot = Snapshot(reader, head)
        shown = [name for name, _, _ in snapshot.entries(1, lambda name, _: damaged.append(name))]
        with pytest.raises(DamagedRecordError):
            list(snapshot.entries(1))
        with pytest.raises(DamagedRecordError):
            snapshot.lookup(1, b"fresh")
    assert damaged == [b"fresh"]
    assert shown == [b"docs", b"empty", b"link", b"shared1", b"shared2", b"src"]


def test_the_log_names_a_damaged_checkpoint_and_shows_the_others(sample: Sample) -> None:
    key = falsify(sample, "checkpoint", 3, 40)
    damaged: list[str] = []
    with reading(sample.store, None) as workspace:
        found = timeline(workspace, damaged=damaged.append)
        with pytest.raises(DamagedRecordError):
            timeline(workspace)
    assert damaged == [key.decode()]
    assert {sample.names[row.id] for row in found} == {"now", "lost", "one", "start"}


@pytest.mark.parametrize(
    ("table", "hidden"), [("inode", {"@"}), ("dirent", {"@"}), ("change", set())]
)
def test_the_log_of_a_path_leaves_out_what_is_damaged(
    sample: Sample, table: str, hidden: set[str]
) -> None:
    """hidden: the states that cannot be compared for the file whose record is damaged."""
    falsify(sample, table, 3, 40 if table != "change" else 20)
    fd = os.open(sample.base, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with reading(sample.store, fd) as workspace:

            def log(path: bytes) -> tuple[set[str], set[str]]:
                damaged: set[str] = set()
                states = States(workspace.reader, workspace.branch.head)

                def name(epoch: int) -> str:
                    record = states.checkpoint(epoch)
                    return sample.names[record.id] if record else "@"

                found = PathHistory(workspace, states, path, lambda at: damaged.add(name(at)))
                return {name(epoch) for epoch, _ in found.events()}, damaged

            told, damaged = log(b"fresh")
            assert damaged == hidden
            assert told == {"@"} - hidden
            told, damaged = log(b"")
            assert damaged == set()
            assert told == {"one", "two", "lost", "@"}
            finder = Finder(workspace, States(workspace.reader, workspace.branch.head))
            assert [row.path for row in finder.find(Pattern(b"util"))] == [b"src/util"]
            assert finder.damaged == 0
            assert len(list(finder.find(Pattern(b"fresh")))) == (not hidden)
            assert finder.damaged == bool(hidden)
    finally:
        os.close(fd)


def test_a_damaged_change_record_hides_no_change(sample: Sample) -> None:
    one, now = Lineage(((0, 1),)), Lineage(((0, 1), (4, 4)))
    with open_for_looking(sample) as (reader, _):
        wanted = touched_between(reader, one, now)
    key = falsify(sample, "change", 3, 20)
    with sample.open() as hands:  # and under another name
        stored = hands.stored("change", key)
        hands.drop("change", key)
        hands.store("change", key[:-1] + b"X", stored)
    with open_for_looking(sample) as (reader, _):
        assert touched_between(reader, one, now) == wanted


def test_it_can_be_mounted_with_damaged_orphans_and_changes(sample: Sample) -> None:
    for table in ("orphan", "change"):
        falsify(sample, table, 3, 20)
    rig = fresh(sample)
    assert [kind for kind, _ in rig.problems()] == ["damaged"]
    rig.write(b"fresh", b"goes on")
    rig.checkpoint()
    assert rig.read(b"fresh")[:7] == b"goes on"
    rig.finish(check=False)


@pytest.mark.parametrize("act", ["unlink", "write", "rename"])
def test_writing_goes_on_beside_damage(sample: Sample, act: str) -> None:
    """Damaged older versions keep nothing from being stored."""
    falsify(sample, "dirent", 3, 40)
    falsify(sample, "xattr", 3, 40)
    rig = fresh(sample)
    rig.create(b"new", os.urandom(1000))
    if act == "unlink":
        rig.unlink(b"src/util")
    elif act == "write":
        rig.write(b"src/util", b"x")
    else:
        rig.rename(b"src/util", b"moved")
    rig.volume.sync()
    rig.checkpoint()
    assert rig.volume.writer.failure is None
    rig.finish(check=False)
