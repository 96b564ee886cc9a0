"""What goes of conversations and sessions when their checkpoints are gone, and what never does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from cowfs.agents.base import Source
from cowfs.format.sessions import (
    ACTIVE,
    ENDED,
    WHOLE,
    ContextRecord,
    SessionRecord,
    pack_context,
    piece_key,
)
from cowfs.service.checkpoint import checkpoint
from cowfs.service.collecting import Pace
from cowfs.service.config import Retention
from cowfs.service.engine import LocalEngine
from cowfs.service.housekeeping import clean
from cowfs.service.sessions import liveness, reading, retention
from cowfs.service.sessions.registry import Registry
from cowfs.service.sessions.retention import Dropped, drop_unneeded
from cowfs.store.snapshot import Reader
from tests.collecting.looking import check_verified, forget
from tests.sessions.talking import LINE, Talk, pieces, sessions, transcripts
from tests.support.volumes import AUTHOR, Rig

T = TypeVar("T")


def always() -> bool:
    return True


@pytest.fixture
def talk(volume: Rig, tmp_path: Path) -> Talk:
    return Talk(volume, tmp_path / "agent")


def drop(talk: Talk, *, old: bool = True) -> Dropped:
    assert talk.rig.volume.reader.last_key("piece"), "nothing is committed that could go"
    done = drop_unneeded(talk.rig.engine, talk.registry, always, old=old)
    check_verified(talk.rig)
    return done


def end(talk: Talk, **fields: object) -> None:
    with talk.registry.lock:
        record = talk.registry.get(talk.name)
        assert record is not None
        talk.registry.put(msgspec.structs.replace(record, state=ENDED, ended=1, **fields))
    talk.rig.volume.sync()


def contexts(rig: Rig) -> set[str]:
    with Reader(rig.volume.store) as reader:
        return {key.decode() for key in reader.keys("context")}


# -- contexts -----------------------------------------------------------------------------------


def test_a_context_goes_with_its_checkpoint(talk: Talk) -> None:
    talk.says(LINE)
    one, two = talk.checkpoint(), talk.checkpoint()
    assert contexts(talk.rig) == {one.id, two.id}
    forget(talk.rig, [one.id])
    assert contexts(talk.rig) == {two.id}
    check_verified(talk.rig)


# -- transcripts --------------------------------------------------------------------------------


def test_what_a_session_goes_on_with_stays(talk: Talk) -> None:
    talk.says(LINE)
    one = talk.checkpoint()
    forget(talk.rig, [one.id])
    assert drop(talk) == Dropped()
    talk.says(LINE)
    assert talk.kept() == {"main": 2 * LINE}


def test_what_a_checkpoint_marks_stays_and_goes_with_it(talk: Talk) -> None:
    talk.says(LINE)
    one = talk.checkpoint()
    talk.path().write_bytes(LINE.upper())
    two = talk.checkpoint()
    assert drop(talk) == Dropped()
    assert talk.conversation(one) == {"main": LINE}
    forget(talk.rig, [one.id])
    assert drop(talk) == Dropped(transcripts=1, pieces=1)
    assert talk.conversation(two) == {"main": LINE.upper()}
    assert list(pieces(talk.rig)) == [(2, 0)]


def test_versions_that_no_checkpoint_saw_go(talk: Talk) -> None:
    talk.add("main", "session.json", WHOLE)
    for number in range(10):
        talk.path().write_bytes(b"version %d" % number)
        if number in (3, 7):
            talk.checkpoint()
        else:
            talk.keep()
    assert drop(talk).transcripts == 7
    assert set(transcripts(talk.rig)) == {4, 8, 10}


def test_what_somebody_is_about_to_make_a_checkpoint_with_stays(talk: Talk) -> None:
    """Between the look at the files and the checkpoint the file may be replaced."""
    talk.says(LINE)
    captured = talk.keep()
    talk.path().write_bytes(LINE.upper())
    talk.keep()
    talk.rig.volume.sync()
    assert drop(talk) == Dropped()
    one = talk.checkpoint(captured)
    del captured
    assert drop(talk) == Dropped()
    assert talk.conversation(one) == {"main": LINE}
    forget(talk.rig, [one.id])
    assert drop(talk).transcripts == 1


def test_what_waits_to_be_committed_counts(talk: Talk) -> None:
    talk.says(LINE)
    captured = talk.keep()
    one = talk.rig.volume.main.head
    talk.rig.volume.sync()
    made = talk.checkpoint(captured)
    assert made.epoch == one
    del captured
    talk.path().write_bytes(LINE.upper())
    talk.keep()
    assert talk.rig.volume.dirty
    assert drop(talk) == Dropped()
    assert talk.conversation(made) == {"main": LINE}


def test_it_ends_at_any_step_and_goes_on(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_AT_ONCE", 1)
    talk.add("main", "session.json", WHOLE)
    for number in range(8):
        talk.path().write_bytes(b"version %d" % number)
        talk.keep()
    left = 1
    while len(transcripts(talk.rig)) > 1 or left < 40:
        steps = iter([True] * left + [False] * 100)
        drop_unneeded(talk.rig.engine, talk.registry, steps.__next__, old=True)
        check_verified(talk.rig)
        left += 1
    assert list(pieces(talk.rig)) == [(8, 0)]


def test_pieces_that_a_crash_left_behind(talk: Talk) -> None:
    talk.says(LINE)
    talk.keep()
    talk.rig.volume.sync()
    table = talk.rig.volume.store.tables["piece"]
    with Reader(talk.rig.volume.store) as reader:
        value = reader.get("piece", piece_key(1, 0)) or b""

    def leave(txn: object) -> None:
        for number in (5, (1 << 64) - 1):
            txn.put(piece_key(number, 0), value, db=table)  # type: ignore[attr-defined]

    talk.rig.volume.writer.run(leave)
    assert drop(talk) == Dropped(pieces=2)
    assert list(pieces(talk.rig)) == [(1, 0)]


def test_what_cannot_be_read_keeps_all(talk: Talk) -> None:
    """It may mark anything."""
    talk.says(LINE)
    one = talk.checkpoint()
    talk.path().write_bytes(LINE.upper())
    two = talk.checkpoint()
    forget(talk.rig, [one.id])
    table = talk.rig.volume.store.tables["context"]
    talk.rig.volume.writer.run(lambda txn: txn.put(two.id.encode(), b"no context", db=table))
    assert drop_unneeded(talk.rig.engine, talk.registry, always) == Dropped()
    assert set(transcripts(talk.rig)) == {1, 2}
    talk.rig.check = False


# -- sessions -----------------------------------------------------------------------------------


def old(talk: Talk, *, sub: bool = True) -> None:
    """A session that ended before the first checkpoint, with a sub-agent."""
    talk.says(LINE)
    talk.keep()
    if sub:
        talk.registry.put(SessionRecord(f"{talk.name}/a1", "claude", ENDED, parent=talk.name))
    end(talk)
    talk.rig.volume.sync()


def test_an_old_session_that_nothing_names(talk: Talk) -> None:
    old(talk)
    assert drop(talk) == Dropped()  # there is only the first checkpoint
    talk.rig.checkpoint()
    assert drop(talk, old=False) == Dropped()
    assert drop(talk) == Dropped(sessions=2, transcripts=1, pieces=1)
    assert (sessions(talk.rig), transcripts(talk.rig)) == ({}, {})
    assert talk.registry.get("s1") is None


def test_one_that_a_checkpoint_names_stays(talk: Talk) -> None:
    talk.says(LINE)
    one = talk.checkpoint()
    end(talk)
    two = talk.rig.checkpoint()
    assert drop(talk) == Dropped()
    forget(talk.rig, [one.id])
    assert talk.rig.volume.reader.epoch(two.epoch).opened > 1
    assert drop(talk).sessions == 1


def test_one_whose_sub_agent_a_checkpoint_names_stays(talk: Talk) -> None:
    old(talk)
    talk.name = "s1/a1"
    talk.checkpoint(talk.registry.transcripts.capture(sessions(talk.rig)["s1"], [])[1])
    assert drop(talk) == Dropped()
    assert set(sessions(talk.rig)) == {"s1", "s1/a1"}


def test_one_that_was_heard_of_since_the_oldest_checkpoint_stays(talk: Talk) -> None:
    old(talk)
    made = talk.rig.checkpoint()
    end(talk, last=talk.rig.volume.reader.epoch(made.epoch).opened)
    assert drop(talk) == Dropped()
    end(talk, last=talk.rig.volume.reader.epoch(made.epoch).opened - 1)
    assert drop(talk).sessions == 2


def test_one_that_goes_on_stays_and_an_interrupted_one_goes(talk: Talk) -> None:
    old(talk, sub=False)
    talk.rig.checkpoint()
    with talk.registry.lock:
        record = talk.registry.get("s1")
        assert record is not None
        alive = msgspec.structs.replace(record, state=ACTIVE, ended=0, boot=liveness.boot_id())
        talk.registry.put(alive)
    talk.rig.volume.sync()
    assert drop(talk) == Dropped()
    talk.registry.put(msgspec.structs.replace(alive, boot="another one"))
    talk.rig.volume.sync()
    assert drop(talk).sessions == 1


def test_one_that_comes_back_begins_anew(talk: Talk) -> None:
    old(talk)
    talk.rig.checkpoint()
    drop(talk)
    talk.says(LINE)
    assert talk.kept() == {"main": 2 * LINE}
    assert sessions(talk.rig)["s1"].files == (2,)
    pieces(talk.rig)


def test_one_that_changes_at_the_last_moment_stays(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    old(talk)
    talk.rig.checkpoint()
    find = retention._old_families

    def heard_of(*of: Any) -> Any:
        found = find(*of)
        end(talk, last=1 << 62)
        return found

    monkeypatch.setattr(retention, "_old_families", heard_of)
    assert drop(talk) == Dropped()
    assert set(sessions(talk.rig)) == {"s1", "s1/a1"}


def test_it_ends_between_a_session_and_its_pieces(talk: Talk) -> None:
    old(talk)
    talk.rig.checkpoint()
    steps = iter([True])  # the session
    done = drop_unneeded(talk.rig.engine, talk.registry, lambda: next(steps, False))
    assert done == Dropped(sessions=2, transcripts=1)
    check_verified(talk.rig)
    assert drop(talk) == Dropped(pieces=1)


def test_names_that_begin_alike(talk: Talk, tmp_path: Path) -> None:
    """`s1-2` stands between `s1` and its sub-agents."""
    other = Talk(talk.rig, tmp_path / "other", "s1-2")
    other.registry = talk.registry
    old(talk)
    other.says(LINE)
    other.checkpoint()
    with Reader(talk.rig.volume.store) as reader:
        assert [r.id for r in reading.sessions(reader)] == ["s1", "s1-2", "s1/a1"]
        assert [r.id for r in reading.subagents(reader, "s1")] == ["s1/a1"]
    assert drop(talk).sessions == 2
    assert set(sessions(talk.rig)) == {"s1-2"}


# -- as a part of a collection ------------------------------------------------------------------


def test_a_collection_drops_what_its_rules_leave_alone(talk: Talk) -> None:
    talk.says(LINE)
    one = talk.checkpoint()
    talk.path().write_bytes(LINE.upper())
    two = talk.checkpoint()
    end(talk)
    three = talk.rig.checkpoint()
    rules = Retention("development", 1, 0, 0, 0, 0, 0)
    done = clean(
        talk.rig.engine,
        contextlib.nullcontext(),
        rules,
        Pace(),
        lambda **_: None,
        registry=talk.registry,
    )
    # The newest prompt is counted among prompts.
    assert {decision.checkpoint.id for decision in done.removed} == {one.id}
    assert set(transcripts(talk.rig)) == {2}
    assert talk.conversation(two) == {"main": LINE.upper()}
    forget(talk.rig, [two.id])
    clean(talk.rig.engine, contextlib.nullcontext(), rules, Pace(), lambda **_: None)
    assert sessions(talk.rig) == {}
    with Reader(talk.rig.volume.store) as reader:
        assert reader.get("checkpoint", three.id.encode()) is not None
        assert reader.last_key("piece") is None


class OneAtATime(LocalEngine):
    """The volume has one owner at a time, as in a daemon."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig.volume)
        self._owner = threading.RLock()

    def call(self, fn: Callable[[], T]) -> T:
        with self._owner:
            return fn()

    at_one_moment = call


def test_beside_agents_that_make_checkpoints(talk: Talk, tmp_path: Path) -> None:
    """Files are replaced between the look at them and the checkpoint, while all that nothing needs
    is dropped again and again."""
    engine, operation = OneAtATime(talk.rig), threading.RLock()
    registry = Registry(engine)
    told: dict[str, bytes] = {}

    def work(name: str) -> None:
        file = tmp_path / name
        source = Source("main", str(file), WHOLE)
        for number in range(25):
            file.write_bytes(f"{name} {number}".encode())
            with registry.lock:
                record = registry.get(name) or SessionRecord(name, "claude", last=1 << 62)
                record, captured = registry.capture(record, [source])
            said = file.read_bytes()
            file.write_bytes(b"replaced")
            with registry.lock:
                registry.capture(record, [source])
            context = pack_context(ContextRecord(name, marks=captured.marks))
            with operation:
                made = checkpoint(engine, AUTHOR, session=name, context=context)
            told[made.id] = said

    threads = [threading.Thread(target=work, args=(f"a{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    done = Dropped()
    while any(thread.is_alive() for thread in threads):
        part = drop_unneeded(engine, registry, always)
        done = Dropped(done.sessions, done.transcripts + part.transcripts, done.pieces)
    for thread in threads:
        thread.join()
    assert len(told) == 75
    for name, said in told.items():
        assert talk.conversation(name) == {"main": said}
    drop_unneeded(engine, registry, always)
    check_verified(talk.rig)
    assert len(transcripts(talk.rig)) <= 75 + 3
