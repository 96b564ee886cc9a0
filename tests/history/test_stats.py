"""`cowfs stats`: every number compared with one that was found in another way."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cowfs.format import codec, keys
from cowfs.service import stats
from cowfs.service.collecting import preview
from cowfs.service.content import Tree
from cowfs.service.selectors import Point, all_checkpoints
from cowfs.service.workspace import ReadOnly
from cowfs.store.compaction import compact
from cowfs.store.rewriting import silent
from cowfs.types import BLOCK_SIZE
from tests.history.states import history
from tests.history.test_diff_random import Edit, apply_edit, edits, filled
from tests.sessions.talking import LINE, Talk
from tests.support.volumes import Rig


def nobody(*_step: object, **_more: object) -> None:
    """Looks at no progress."""


def states(workspace: ReadOnly) -> list[Point]:
    """All checkpoints and the present state."""
    checkpoints = [workspace.point(record.id) for record in all_checkpoints(workspace.reader)]
    return [*checkpoints, workspace.point("@")]


def size_of(workspace: ReadOnly, point: Point) -> int:
    """The files of a state, each once, however many names it has."""
    files = {node.identity: node.size for node in Tree(workspace, point).walk() if node.is_file}
    return sum(files.values())


def needed(workspace: ReadOnly, points: list[Point]) -> set[bytes]:
    """The blocks that some states need: named by their files, or what such a block refers to."""
    named = set()
    for point in points:
        snapshot = workspace.snapshot(point)
        for node in Tree(workspace, point).walk():
            if node.is_file:
                record = snapshot.inode(node.ino)
                assert record is not None
                last = (node.size + BLOCK_SIZE - 1) // BLOCK_SIZE
                rows = snapshot.extents(record.content)
                named |= {digest for number, digest in rows if digest and number < last}
    stored = dict(workspace.reader.scan("block"))
    return named | {r for d in named if (r := codec.delta_reference(stored[d])) is not None}


@given(st.lists(edits, max_size=25), st.integers(0, 8), st.integers(0, 8))
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_random_histories(some: list[Edit], first: int, last: int) -> None:
    with filled() as rig:
        rig.tree()
        made = [rig.checkpoint()]
        for edit in some:
            apply_edit(rig, made, edit)
        rig.checkpoint()
        with history(rig) as workspace:
            compare(workspace)
            compare_freed(workspace, first, last)


def test_what_is_compressed_together(open_rig: Callable[[], Rig]) -> None:
    """Each block has its share of the segment."""
    rig = open_rig()
    for number in range(10):
        rig.create(b"f%d" % number, b"a line of text %d\n" % number * 2000)
    rig.checkpoint()
    rig.write(b"f3", b"other", 100)
    rig.checkpoint()
    rig.close()
    compact(rig.store, silent)
    rig.start()
    with history(rig) as workspace:
        found = stats.details(workspace, nobody)
        stored = dict(workspace.reader.scan("block"))
    assert (found.damaged, found.missing, found.unused) == (0, 0, 0)
    assert found.by_codec.keys() == {"part"}
    part = found.by_codec["part"]
    assert (part.blocks, part.raw) == (11, found.raw)
    assert part.stored == found.stored == sum(map(len, stored.values()))
    assert found.saved["segments"] == found.raw - found.stored
    assert found.logical_all - sum(found.saved.values()) == found.stored
    assert sum(one.stored for one in found.checkpoints) == found.stored


def compare(workspace: ReadOnly) -> None:
    found = stats.details(workspace, nobody)
    assert found.damaged == found.missing == 0
    everything = states(workspace)
    assert found.logical == size_of(workspace, everything[-1])
    assert found.logical_all == sum(size_of(workspace, point) for point in everything)
    stored = dict(workspace.reader.scan("block"))
    rows = [(key, value) for key, value in workspace.reader.scan("extent") if len(value) == 32]
    names = Counter(value for _, value in rows)
    raw = {digest: int.from_bytes(value[1:5], "big") for digest, value in stored.items()}
    assert found.written == sum(raw[digest] * count for digest, count in names.items())
    assert found.raw == sum(raw[digest] for digest in names)
    assert found.stored == sum(len(stored[digest]) for digest in names)
    assert found.unused == sum(len(v) for d, v in stored.items() if d not in names)
    assert sum(one.blocks for one in found.by_codec.values()) == len(names)
    whole = found.logical_all - sum(found.saved.values())
    assert whole == found.stored, "what the layers save is all the difference"
    first: dict[bytes, int] = {}
    for key, digest in rows:
        first[digest] = min(first.get(digest, 1 << 64), keys.epoch_of(key))
    by_epoch: Counter[int] = Counter()
    for digest, epoch in first.items():
        by_epoch[epoch] += len(stored[digest])
    epochs = {record.id: record.epoch for record in all_checkpoints(workspace.reader)}
    epochs["@"] = workspace.branch.head
    told = {epochs[part.name]: part.stored for part in found.checkpoints}
    assert told.items() <= by_epoch.items()
    assert len(told) == min(len(by_epoch), stats.BIGGEST)
    assert list(told.values()) == sorted(by_epoch.values(), reverse=True)[: stats.BIGGEST]
    assert sum(part.stored for part in found.paths) <= found.stored


def compare_freed(workspace: ReadOnly, first: int, last: int) -> None:
    """Deleting some checkpoints frees what no other state needs."""
    records = [record for record in all_checkpoints(workspace.reader) if record.epoch]
    going = {record.epoch for record in records[first:last]}
    would = preview(workspace.reader, going, nobody)
    # The state that the present one came from stays, with a checkpoint or without.
    parent = workspace.reader.epoch(workspace.branch.head).parent
    staying = [p for p in states(workspace) if p.lineage.head not in going - {parent}]
    stored = dict(workspace.reader.scan("block"))
    gone = stored.keys() - needed(workspace, staying)
    assert would.blocks == len(gone)
    assert would.bytes == sum(len(stored[digest]) for digest in gone)


def test_what_added_the_most(open_rig: Callable[[], Rig]) -> None:
    """Bytes that do not shrink, so that it is known what they take."""
    noise = random.Random(1).randbytes
    rig = open_rig()
    rig.create(b"small", noise(10_000))
    rig.mkdir(b"d")
    rig.create(b"d/great", noise(300_000))
    first = rig.checkpoint("first", label="one")
    rig.create(b"gone", noise(100_000))
    second = rig.checkpoint("second")
    rig.unlink(b"gone")
    rig.create(b"copy", rig.read(b"d/great"))
    rig.create(b"text", b"a line of text\n" * 4000)
    third = rig.checkpoint("third")
    with history(rig) as workspace:
        found = stats.details(workspace, nobody)
        short = stats.summary(workspace)
    header = codec.HEADER_SIZE
    assert [(part.name, part.label) for part in found.checkpoints[:3]] == [
        (first.id, "one"),
        (second.id, ""),
        (third.id, ""),
    ]
    assert found.checkpoints[0].stored == 310_000 + 6 * header
    assert found.checkpoints[1].stored == 100_000 + 2 * header
    assert found.checkpoints[2].stored < 1000
    assert [part.name for part in found.paths] == ["d/great", "gone", "small", "text"]
    assert found.paths[0].stored == 300_000 + 5 * header
    assert found.logical == 10_000 + 2 * 300_000 + 60_000
    assert found.logical_all == 2 * found.logical + 310_000 + 410_000
    assert found.saved["dedup"] == 300_000
    assert found.saved["zstd"] == 60_000 - found.by_codec["zstd"].stored - 8 * header
    assert (short.checkpoints, short.epochs) == (4, 5)


def test_the_summary_is_what_counters_and_the_file_say(open_rig: Callable[[], Rig]) -> None:
    rig = open_rig()
    for number in range(300):
        rig.create(b"%d" % number, b"%d" % number * 500)
    rig.checkpoint()
    with history(rig) as workspace:
        short = stats.summary(workspace)
        reader = workspace.reader
        assert {table.name: table.entries for table in short.tables} == {
            name: sum(1 for _ in reader.keys(name)) for name in workspace.store.tables
        }
        pages = os.stat(rig.store / "data.mdb").st_size
        page = os.sysconf("SC_PAGE_SIZE")
        assert pages - 16 * page <= short.used_bytes + short.free_bytes + 2 * page <= pages
        assert sum(table.bytes for table in short.tables) <= short.used_bytes
        assert short.records == sum(table.entries for table in short.tables)


def test_conversations_of_agents(open_rig: Callable[[], Rig], tmp_path: Path) -> None:
    """As long as the agents' files are, and as their records."""
    rig = open_rig()
    talk = Talk(rig, tmp_path / "agent")
    talk.says(LINE * 1000)
    talk.keep()
    talk.says(LINE)
    talk.checkpoint()
    with history(rig) as workspace:
        found = stats.details(workspace, nobody)
        values = [value for _, value in workspace.reader.scan("piece")]
    assert found.said == 1001 * len(LINE)
    assert found.said_stored == sum(map(len, values)) < found.said // 10
