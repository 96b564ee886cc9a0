"""The timeline: what came from what, and what each checkpoint changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cowfs.format import keys, records
from cowfs.service.status import volume_status
from cowfs.service.timeline import timeline
from cowfs.service.workspace import reading
from tests.history.reads import Reads
from tests.history.states import history
from tests.support.volumes import START, Rig

OpenRig = Callable[[], Rig]


@pytest.fixture
def rig(open_rig: OpenRig, base: Path) -> Rig:
    (base / "d").mkdir()
    (base / "d/file").write_text("x\n")
    (base / "file").write_text("x\n")
    return open_rig()


def test_first_life(rig: Rig) -> None:
    with history(rig) as workspace:
        head, start = timeline(workspace)
    assert (head.id, head.kind, head.parent, head.current, head.on_line) == (
        "@",
        "head",
        START,
        False,
        True,
    )
    assert (start.id, start.kind, start.parent, start.current) == (START, "start", None, True)
    assert head.counts == records.Counts()


def test_counts_and_fields(rig: Rig) -> None:
    rig.create(b"new")
    rig.mkdir(b"newdir")
    rig.write(b"file", b"y")
    rig.unlink(b"d/file")
    rig.create(b"gone")
    rig.unlink(b"gone")
    one = rig.checkpoint("first", "v1")
    rig.write(b"new", b"y")
    with history(rig) as workspace:
        head, row, _ = timeline(workspace)
    assert row.counts == records.Counts(2, 1, 1)
    assert (row.id, row.epoch, row.message, row.label, row.kind) == (
        one.id,
        one.epoch,
        "first",
        "v1",
        "manual",
    )
    assert (row.user, row.uid, row.pid, row.command, row.time) == (
        "tester",
        1000,
        1,
        "test",
        one.time,
    )
    assert head.counts == records.Counts(0, 1, 0)
    assert head.parent == one.id
    plain = json.loads(json.dumps(row.to_json()))
    assert plain["counts"] == {"created": 2, "modified": 1, "deleted": 1}
    assert plain["parent"] == START


def test_head_counts_are_those_of_status(rig: Rig) -> None:
    rig.checkpoint()
    rig.create(b"new")
    rig.write(b"file", b"y")
    rig.unlink(b"d/file")
    rig.chmod(b"d", 0o700)
    live = volume_status(rig.volume)["changes"]
    with history(rig) as workspace:
        assert timeline(workspace, 0)[0].to_json()["counts"] == live


def test_tree_of_restores(rig: Rig) -> None:
    one = rig.checkpoint("one")
    rig.write(b"file", b"2")
    two = rig.checkpoint("two")
    rig.write(b"file", b"3")
    restored = rig.restore(one)
    rig.write(b"file", b"4")
    three = rig.checkpoint("three")
    with history(rig) as workspace:
        rows = {row.id: row for row in timeline(workspace)}
    assert {row.id: row.parent for row in rows.values()} == {
        "@": three.id,
        three.id: one.id,
        restored.rescue.id: two.id,
        two.id: one.id,
        one.id: START,
        START: None,
    }
    assert next(iter(rows)) == "@"
    assert list(rows)[1:] == sorted(list(rows)[1:], key=lambda i: rows[i].time, reverse=True)
    assert [i for i, row in rows.items() if row.current] == [three.id]
    assert [i for i, row in rows.items() if row.on_line] == ["@", three.id, one.id, START]
    assert rows[restored.rescue.id].kind == "rescue"
    assert rows[restored.rescue.id].target == one.id
    rescued = rig.undo()
    with history(rig) as workspace:
        rows = {row.id: row for row in timeline(workspace)}
    assert rows["@"].parent == restored.rescue.id
    assert rows[restored.rescue.id].current
    assert rows[rescued.rescue.id].parent == three.id
    assert not rows[three.id].on_line
    assert rows[two.id].on_line


def test_right_after_a_restore_the_target_is_current(rig: Rig) -> None:
    one = rig.checkpoint("one")
    rig.write(b"file", b"2")
    rig.checkpoint("two")
    rig.restore(one)
    with history(rig) as workspace:
        rows = timeline(workspace)
    assert [row.id for row in rows if row.current] == [one.id]
    assert rows[0].parent == one.id


def test_limit(rig: Rig) -> None:
    made = [rig.checkpoint(str(n)) for n in range(5)]
    with history(rig) as workspace:
        rows = timeline(workspace, 2)
        assert [row.id for row in rows] == ["@", made[4].id, made[3].id]
        assert [row.id for row in timeline(workspace, 0)] == ["@"]
        assert len(timeline(workspace, 100)) == 7
        assert len(timeline(workspace, None)) == 7


def test_checkpoints_that_were_removed_are_stepped_over(tmp_path: Path, base: Path) -> None:
    rig = Rig(tmp_path / "store", base)
    try:
        made = [rig.checkpoint(str(n)) for n in range(4)]
        for record in made[1:3]:
            rig.volume.extra.deletes.append(("checkpoint", record.id.encode()))
        rig.volume.sync()
        with history(rig) as workspace:
            rows = {row.id: row.parent for row in timeline(workspace)}
        assert rows[made[3].id] == made[0].id
    finally:
        rig.finish(check=False)


def test_work_is_that_of_the_rows(tmp_path: Path, base: Path, reads: Reads) -> None:
    """A few records are read for each row, however many checkpoints there are."""
    rig = Rig(tmp_path / "store", base)
    try:
        volume, last = rig.volume, 3000
        for epoch in range(1, last + 1):
            name = f"{epoch:012x}" if epoch < last else ""
            if name:
                record = records.CheckpointRecord(name, epoch, "main", "manual", epoch)
                volume.extra.put("checkpoint", name.encode(), records.encode(record))
            sealed = records.EpochRecord(
                epoch - 1, 0, "main", epoch, epoch if name else 0, checkpoint=name
            )
            volume.extra.put("epoch", keys.pack_id(epoch), records.encode(sealed))
        volume.extra.put("branch", b"main", records.encode(records.BranchRecord("main", last)))
        volume.sync()
        rig.close()
        with reading(rig.store, rig.base_fd) as workspace:
            reads.count = 0
            assert len(timeline(workspace)) == last + 1
            assert reads.count < 3 * last + 20
            reads.count = 0
            assert len(timeline(workspace, 25)) == 26
            assert reads.count < 3 * 26 + 20
    finally:
        rig.finish(check=False)
