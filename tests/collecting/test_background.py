"""What a daemon does by itself: without a mount."""

from __future__ import annotations

import ctypes
import errno
import random
import threading

import pytest

from cowfs.daemon.collector import Collector
from cowfs.service import shrinking
from cowfs.service.collecting import is_due
from cowfs.service.selectors import all_checkpoints
from cowfs.store import holes
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


# -- what is free goes back to the disk -----------------------------------------------------------

MUCH = random.Random(1).randbytes(4 << 20)


@pytest.fixture
def roomy(here: Here, monkeypatch: pytest.MonkeyPatch) -> Here:
    """With 4 MiB of free pages, which is much here."""
    monkeypatch.setattr(shrinking, "_WORTH", 2 << 20)
    monkeypatch.setattr(shrinking, "_SPARED", (1 << 20, 1 << 20))
    here.rig.create(b"much", MUCH)
    here.rig.volume.sync()
    here.rig.unlink(b"much")
    here.rig.volume.sync()
    here.rig.create(b"after")
    here.rig.volume.sync()
    here.collector._due = float("inf")
    return here


def test_what_is_free_is_given_back(roomy: Here) -> None:
    store = roomy.rig.volume.store
    before = store.bytes_used()
    roomy.busy.set()
    roomy.collector._look(1000.0)
    assert store.bytes_used() == before, "somebody works"
    roomy.busy.clear()
    roomy.collector._look(1000.0)
    assert before - store.bytes_used() > 2 << 20
    assert roomy.rig.volume.writer.room.inside >= 1 << 20, "some of it stays"


def test_what_is_hardly_worth_it_stays(roomy: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrinking, "_WORTH", 4 << 20)
    before = roomy.rig.volume.store.bytes_used()
    roomy.collector._look(1000.0)
    assert roomy.rig.volume.store.bytes_used() == before


def test_where_there_are_no_holes_it_is_tried_once(
    roomy: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def refuse(*arguments: int) -> int:
        tried.append(arguments)
        ctypes.set_errno(errno.EOPNOTSUPP)
        return -1

    monkeypatch.setattr(holes, "_fallocate", refuse)
    for moment in (1000.0, 10_000.0, 100_000.0):
        roomy.collector._look(moment)
    assert len(tried) == 1
