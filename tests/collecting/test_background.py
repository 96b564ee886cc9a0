"""What a daemon does by itself: without a mount."""

from __future__ import annotations

import threading

import pytest

from cowfs.daemon.collector import Collector
from cowfs.service.collecting import is_due
from cowfs.service.selectors import all_checkpoints
from tests.collecting.looking import forget
from tests.support.volumes import Rig

DATA = b"0123456789abcdef" * 5000


class Here:
    """A collector whose thread is not started, and what it works on."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.busy, self.stop = threading.Event(), threading.Event()
        self.collector = Collector(rig.engine, threading.RLock(), rig.store, self.busy, self.stop)

    def messages(self) -> list[str]:
        self.rig.volume.look_again()
        return [record.message for record in all_checkpoints(self.rig.volume.reader)]


@pytest.fixture
def here(volume: Rig) -> Here:
    for number in range(4):
        volume.create(b"%d" % number, DATA + b"%d" % number)
        volume.checkpoint(f"c{number}")
        volume.unlink(b"%d" % number)
    volume.checkpoint("last")
    return Here(volume)


def settings(here: Here, text: str) -> None:
    (here.rig.store / "config.toml").write_text(f"[retention]\n{text}\n")


START = "before the first mount"


def test_it_keeps_to_the_policy(here: Here) -> None:
    settings(here, "keep_days = 0\nkeep_last = 2")
    here.collector._keep_to_policy()
    assert here.messages() == [START, "c3", "last"]
    state = here.collector.state()
    assert state is not None
    assert (state["reason"], state["checkpoints"]) == ("policy", 3)
    assert state["freed_bytes"] > 0


def test_by_default_nothing_that_is_young_goes(here: Here) -> None:
    here.collector._keep_to_policy()
    assert len(here.messages()) == 6
    assert here.collector.state() is None


def test_rules_that_cannot_be_read_remove_nothing(here: Here) -> None:
    settings(here, "keep_days = 0\nkeep_last = 'two'")
    forgotten = here.messages()[1]
    forget(here.rig, [r for r in _ids(here) if _ids(here)[r] == forgotten])
    here.collector._keep_to_policy()
    assert len(here.messages()) == 5
    here.rig.volume.look_again()
    assert not is_due(here.rig.volume.reader), "what was removed by hand is collected"


def _ids(here: Here) -> dict[str, str]:
    here.rig.volume.look_again()
    return {record.id: record.message for record in all_checkpoints(here.rig.volume.reader)}


def test_it_ends_when_it_shall(here: Here) -> None:
    settings(here, "keep_days = 0\nkeep_last = 1")
    here.stop.set()
    here.collector._keep_to_policy()
    assert here.messages() == [START, "last"], "removing is short, and was begun"
    here.rig.volume.look_again()
    assert is_due(here.rig.volume.reader), "collecting is for the next life"


def test_it_gives_way_to_who_asks(here: Here) -> None:
    settings(here, "keep_days = 0\nkeep_last = 1")
    here.collector._asked.set()
    here.collector._keep_to_policy()
    here.rig.volume.look_again()
    assert is_due(here.rig.volume.reader)
    done = here.collector.asked(None, lambda **_: None, idle=False)
    assert done.collected.complete
    here.rig.volume.look_again()
    assert not is_due(here.rig.volume.reader)


def test_room_is_made_from_the_oldest_on(here: Here) -> None:
    writer = here.rig.volume.writer
    writer.measure()
    writer.set_quota(writer.room.used + 1000)
    assert here.collector._is_short()
    here.collector._make_room()
    left = here.messages()
    assert left[0] == START
    assert left[-1] == "last"
    assert "c0" not in left
    state = here.collector.state()
    assert state is not None
    assert state["reason"] == "quota"
