"""What is told of times long past is dropped, in small steps, and with it who nobody tells of."""

from __future__ import annotations

import os

import pytest

from cowfs.format import keys
from cowfs.service.audit import retention
from cowfs.service.audit.retention import drop_before_history, drop_old
from cowfs.store.snapshot import Reader
from cowfs.volume.removing import remove
from tests.audit.acting import Actor, processes, sleeper, told
from tests.support.volumes import Rig


def now(rig: Rig) -> int:
    """A time after all records."""
    with Reader(rig.volume.store) as reader:
        key = reader.last_key("audit")
    assert key is not None
    return keys.unpack_id(key) + 1


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_AT_ONCE", 2)


def test_old_records_and_who_made_them(volume: Rig) -> None:
    with sleeper() as pid:
        for number in range(5):
            Actor(volume, pid).create(b"old%d" % number)
            volume.volume.sync()
    limit = now(volume)
    Actor(volume).create(b"new")
    volume.reopen()  # nobody in memory needs them
    done = drop_old(volume.engine, limit)
    assert (done.records, done.processes) == (5, 1)
    assert told(volume) == [("made", "new")]
    assert [row.pid for row in processes(volume).values()].count(os.getpid()) == 1
    assert pid not in {row.pid for row in processes(volume).values()}


def test_who_is_still_there_stays(volume: Rig) -> None:
    """It will be named again."""
    actor = Actor(volume)
    actor.create(b"old")
    volume.volume.sync()
    assert drop_old(volume.engine, now(volume)).processes == 0
    actor.create(b"new")
    assert told(volume) == [("made", "new")]


def test_everything(volume: Rig) -> None:
    Actor(volume).create(b"old")
    volume.reopen()
    drop_old(volume.engine, now(volume))
    assert (told(volume), processes(volume)) == ([], {})
    Actor(volume).create(b"new")
    assert told(volume) == [("made", "new")]


def test_nothing(volume: Rig) -> None:
    done = drop_old(volume.engine, 1 << 62)
    assert (done.records, done.processes) == (0, 0)
    Actor(volume).create(b"new")
    volume.volume.sync()
    assert drop_old(volume.engine, 0).records == 0


def test_the_log_goes_back_as_far_as_the_checkpoints(volume: Rig) -> None:
    """With what the oldest of them changed."""
    actor = Actor(volume)
    assert drop_before_history(volume.engine, lambda: False) is None
    checkpoints = []
    for name in (b"one", b"two", b"three"):
        actor.create(name)
        checkpoints.append(volume.checkpoint())
    done = drop_before_history(volume.engine, lambda: False)
    assert done is not None
    assert done.records == 0
    remove(volume.volume, checkpoints[:1])
    volume.volume.sync()
    drop_before_history(volume.engine, lambda: False)
    assert told(volume) == [("made", "two"), ("made", "three")]


def test_it_can_be_stopped(volume: Rig) -> None:
    for number in range(9):
        Actor(volume).create(b"%d" % number)
        volume.volume.sync()
    stops = iter([False, True])
    done = drop_old(volume.engine, now(volume), lambda: next(stops))
    assert (done.records, done.done) == (2, False)
    assert len(told(volume)) == 7
