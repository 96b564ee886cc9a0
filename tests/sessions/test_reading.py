"""What is said of sessions: whether they go on, and what of them can be read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.sessions import ACTIVE, ENDED, ContextRecord, Mark, SessionRecord, piece_key
from cowfs.service.sessions import reading
from cowfs.service.sessions.liveness import boot_id, born, is_running
from cowfs.store.snapshot import Reader
from tests.sessions.talking import LINE, Talk, transcripts
from tests.support.volumes import Rig


@pytest.fixture
def talk(volume: Rig, tmp_path: Path) -> Talk:
    return Talk(volume, tmp_path / "agent")


def session(pid: int, **fields: object) -> SessionRecord:
    values = {"pid": pid, "born": born(pid), "boot": boot_id(), **fields}
    return msgspec.structs.replace(SessionRecord("s1", "claude"), **values)


# -- liveness -----------------------------------------------------------------------------------


def test_a_process_that_is_there() -> None:
    assert is_running(session(os.getpid()))
    assert reading.state(session(os.getpid())) == ACTIVE


def test_a_process_that_ended_whether_somebody_waited_or_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    record = session(child.pid)
    assert is_running(record)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_running(record)  # a zombie
    child.communicate()
    assert not is_running(record)
    assert reading.state(record) == reading.INTERRUPTED


def test_a_pid_that_is_used_again() -> None:
    assert not is_running(session(os.getpid(), born=born(os.getpid()) - 1))


def test_another_start_of_the_machine() -> None:
    assert not is_running(session(os.getpid(), boot="another one"))
    assert not is_running(session(0, boot="another one"))


def test_a_process_that_nobody_knows() -> None:
    assert is_running(session(0))
    assert born(0) == born(-5) == born(1 << 30) == 0


def test_one_that_ended_is_not_interrupted() -> None:
    assert reading.state(session(0, boot="another one", state=ENDED)) == ENDED


def test_of_a_sub_agent_the_process_of_its_session_counts() -> None:
    child = SessionRecord("s1/a1", "claude", parent="s1")
    assert reading.state(child, session(os.getpid())) == ACTIVE
    assert reading.state(child, session(os.getpid(), born=1)) == reading.INTERRUPTED


# -- what cannot be read ------------------------------------------------------------------------


def change(rig: Rig, table: str, key: bytes, value: bytes | None) -> None:
    """Write behind the volume's back."""
    place = rig.volume.store.tables[table]
    rig.volume.sync()
    rig.check = False

    def write(txn: object) -> None:
        if value is None:
            txn.delete(key, db=place)  # type: ignore[attr-defined]
        else:
            txn.put(key, value, db=place)  # type: ignore[attr-defined]

    rig.volume.writer.run(write)


def refused(talk: Talk, marks: tuple[Mark, ...]) -> str:
    with pytest.raises(DamagedRecordError) as caught:
        talk.stored(marks)
    return str(caught.value)


def test_marks_that_do_not_fit_are_errors_and_nothing_else(talk: Talk) -> None:
    talk.says(LINE)
    talk.keep()
    talk.says(LINE.upper())
    (mark,) = talk.keep().marks
    assert talk.stored([mark]) == {"main": LINE + LINE.upper()}
    for fields in (
        {"length": mark.length - 1},
        {"length": mark.length + 1},
        {"length": len(LINE)},
        {"length": -1},
        {"length": 1 << 62},
        {"hash": bytes(32)},
    ):
        assert "is not what it was" in refused(talk, (msgspec.structs.replace(mark, **fields),))
    for number in (77, 0, -1, 1 << 64):
        wrong = msgspec.structs.replace(mark, transcript=number)
        assert f"there is no transcript {number}" in refused(talk, (wrong,))


@pytest.mark.parametrize("number", [0, 1])
def test_pieces_that_are_missing_or_damaged(talk: Talk, number: int) -> None:
    talk.says(LINE)
    (first,) = talk.keep().marks
    talk.says(LINE)
    (second,) = talk.keep().marks
    change(talk.rig, "piece", piece_key(1, number * len(LINE)), b"no piece")
    refused(talk, (second,))
    if number:
        assert talk.stored([first]) == {"main": LINE}
    change(talk.rig, "piece", piece_key(1, number * len(LINE)), None)
    refused(talk, (second,))


def test_a_file_that_would_be_written_elsewhere(talk: Talk) -> None:
    talk.says(LINE)
    (mark,) = talk.keep().marks
    record = msgspec.structs.replace(transcripts(talk.rig)[1], name="../../.bashrc")
    change(talk.rig, "transcript", keys.pack_id(1), records.encode(record))
    assert "cannot be named" in refused(talk, (mark,))


def test_a_session_that_cannot_be_read_begins_anew(talk: Talk) -> None:
    talk.says(LINE)
    one = talk.checkpoint()
    talk.restart()
    change(talk.rig, "session", b"s1", b"no session")
    assert talk.registry.get("s1") is None
    talk.says(LINE)
    assert talk.kept() == {"main": 2 * LINE}
    assert talk.conversation(one) == {"main": LINE}
    assert set(transcripts(talk.rig)) == {1, 2}
    talk.rig.check = True  # nothing damaged is left


def test_a_transcript_that_cannot_be_read_is_stored_anew(talk: Talk) -> None:
    talk.says(LINE)
    talk.keep()
    talk.restart()
    change(talk.rig, "transcript", keys.pack_id(1), b"no transcript")
    assert talk.kept() == {"main": LINE}
    assert talk.registry.get("s1") is not None


def test_a_piece_that_cannot_be_read_is_stored_anew(talk: Talk) -> None:
    talk.says(LINE)
    talk.keep()
    talk.restart()
    change(talk.rig, "piece", piece_key(1, 0), b"no piece")
    assert talk.kept() == {"main": LINE}


def test_a_store_from_before_there_were_sessions(talk: Talk) -> None:
    with Reader(talk.rig.volume.store) as reader:
        tables = dict(reader.store.tables)
        try:
            for name in ("session", "transcript", "piece", "context"):
                del reader.store.tables[name]
            assert list(reading.sessions(reader)) == []
            assert list(reading.subagents(reader, "s1")) == []
            assert reading.session(reader, "s1") is None
            assert reading.context(reader, "0" * 12) is None
            assert reading.transcript(reader, 1) is None
            with pytest.raises(DamagedRecordError):
                reading.conversation(reader, ContextRecord(marks=(Mark(1, 1, bytes(32)),)))
        finally:
            reader.store.tables.update(tables)


def test_an_id_that_can_be_none(talk: Talk) -> None:
    with Reader(talk.rig.volume.store) as reader:
        for name in ("", "x" * 600, "\udc80", "a\nb"):
            assert reading.session(reader, name) is None
