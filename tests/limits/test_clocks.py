"""A clock that goes back or jumps: history keeps its order, and times name what they should."""

from __future__ import annotations

import pytest

from cowfs.cli import output
from cowfs.format import records
from cowfs.service import selectors
from cowfs.service.timeline import timeline
from cowfs.service.workspace import ReadOnly
from cowfs.store.snapshot import Reader
from cowfs.volume import history, posix
from tests.support.volumes import Rig

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
START = 1_800_000_000 * SECOND
YEARS = 10 * 365 * 24 * 60 * MINUTE


class Clock:
    """What `history` and the times of files are told."""

    def __init__(self) -> None:
        self.now = START

    def read(self, *_: object) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(history, "now", made.read)
    monkeypatch.setattr(posix, "_gettime", made.read)
    return made


def order(rig: Rig) -> list[str]:
    """Messages of the timeline, oldest first."""
    rig.volume.sync()
    with Reader(rig.volume.store) as reader:
        rows = timeline(ReadOnly(rig.volume.store, reader, None))
    return [row.message for row in reversed(rows) if row.kind == "manual"]


def named(rig: Rig, selector: str, clock: Clock) -> str:
    point = selectors.resolve(rig.volume.reader, rig.view.lineage, selector, clock.now)
    assert point.checkpoint is not None
    return point.checkpoint.message


def operations(rig: Rig) -> list[records.OperationRecord]:
    rows = rig.volume.reader.scan("operation")
    return [records.decode(value, records.OperationRecord) for _, value in rows]


def test_checkpoints_stay_in_order(volume: Rig, clock: Clock) -> None:
    times = [0, 5 * MINUTE, -60 * MINUTE, -60 * MINUTE, YEARS, -YEARS, 6 * MINUTE]
    for number, offset in enumerate(times):
        clock.now = START + offset
        volume.save(b"f", b"%d" % number)
        volume.checkpoint(message=f"c{number}")
    assert order(volume) == [f"c{number}" for number in range(len(times))]
    for steps in range(1, len(times) + 1):
        assert named(volume, f"@~{steps}", clock) == f"c{len(times) - steps}"
    volume.reopen()
    clock.now = START - 30 * MINUTE
    volume.save(b"f", b"last")
    volume.checkpoint(message="after a restart")
    assert order(volume)[-1] == "after a restart"
    volume.restore("@~3")
    assert volume.read(b"f") == b"5"
    volume.undo()
    assert volume.read(b"f") == b"last"


def test_no_operation_is_lost_when_the_clock_stands_still(volume: Rig, clock: Clock) -> None:
    for number in range(5):
        volume.save(b"f", b"%d" % number)
        volume.checkpoint(message=f"c{number}")
        clock.now -= MINUTE
        if number == 2:
            volume.reopen()
            clock.now = START - 2 * MINUTE
    made = operations(volume)
    assert len(made) == 5
    assert [operation.seq for operation in made] == sorted({o.seq for o in made})
    assert [operation.time for operation in made][:2] == [START, START - MINUTE]


def test_ago_means_the_clock_of_now(volume: Rig, clock: Clock) -> None:
    """Before it was set back the clock was wrong; what was made then is of the future."""
    for message, moment in (
        ("right", START),
        ("wrong", START + 70 * MINUTE),
        ("set back", START + 11 * MINUTE),
        ("later", START + 15 * MINUTE),
    ):
        clock.now = moment
        volume.checkpoint(message=message)
    volume.volume.sync()
    clock.now = START + 22 * MINUTE
    assert named(volume, "@{10 minutes ago}", clock) == "set back"
    assert named(volume, "@{1 minute ago}", clock) == "later"
    assert named(volume, "@{20 minutes ago}", clock) == "right"
    assert named(volume, "@{23 minutes ago}", clock) == "before the first mount"
    clock.now = START + 90 * MINUTE
    assert named(volume, "@{1 minute ago}", clock) == "later"  # the newest, not the latest stamp


def test_a_checkpoint_of_the_future_was_made_just_now() -> None:
    assert output.age(START + YEARS, START) == output.age(START, START)


def test_files_have_the_time_of_the_clock(volume: Rig, clock: Clock) -> None:
    volume.create(b"f", b"1")
    clock.now = START - YEARS
    volume.create(b"g", b"1")
    volume.chmod(b"f", 0o600)
    assert volume.at(b"g").mtime == START - YEARS
    assert volume.at(b"f").ctime == START - YEARS
    clock.now = -5 * SECOND  # before 1970
    volume.chmod(b"f", 0o644)
    volume.reopen()
    assert volume.at(b"f").ctime == -5 * SECOND
