"""Programs that have no adapter: their bytes are kept, and read where they are messages."""

from __future__ import annotations

import pytest

from cowfs import agents
from cowfs.agents import events
from cowfs.agents.base import MAIN, START, NotCopyableError
from cowfs.agents.generic.adapter import adapter
from cowfs.agents.generic.hooks import answer, directories, event
from tests.agents.generic.writing import write
from tests.agents.talks import Answer, Said

TALLY = adapter("tally")
OPAQUE = b"\x00\x01 no json\nmore\n"


def test_any_name_has_an_adapter() -> None:
    assert agents.get("tally").name == "tally"
    assert agents.settings_of("tally") is None


def test_bytes_that_mean_nothing_to_cowfs() -> None:
    read = TALLY.read({MAIN: OPAQUE})
    assert (read.turns, read.last_answer, read.leaf) == ((), "", "2")
    made = TALLY.copy({MAIN: OPAQUE + b"half"}, transcript="/t/a.log", cwd="/w", session="a")
    [(path, body)] = made.files.items()
    assert path == f"/t/a.{made.session[:8]}.log"
    assert body == OPAQUE
    assert made.command == ()
    [note] = made.notes
    assert path in note
    with pytest.raises(NotCopyableError):
        TALLY.copy({MAIN: b"half"}, transcript="/t/a.log", cwd="/w", session="a")


def test_messages() -> None:
    talk = write((Said("one", (Answer("done one"),)), Said("two", (Answer("done two"),))))
    read = TALLY.read({MAIN: talk})
    assert [(turn.prompt, turn.leaf) for turn in read.turns] == [("one", START), ("two", "2")]
    assert TALLY.complete({MAIN: talk}, "done two")
    made = TALLY.copy({MAIN: talk}, transcript="/t/a.jsonl", cwd="/w", session="a", leaf="3")
    assert list(made.files.values()) == [b"".join(talk.splitlines(keepends=True)[:2])]


def test_an_event() -> None:
    said = {"session": "talk", "transcript": "/t/a", "prompt": "add", "pid": 7, "odd": 1}
    assert event("prompt", said, {}) == {
        "event": events.PROMPT,
        "session": "talk",
        "transcript": "/t/a",
        "prompt": "add",
        "pid": 7,
    }
    assert event("", {**said, "event": "turn-end"}, {}) is not None
    assert event("never", said, {}) is None
    assert event("prompt", {"pid": 7}, {}) is None
    assert event("prompt", {"session": "s", "pid": -1, "cwd": 7}, {}) == {
        "event": events.PROMPT,
        "session": "s",
    }


def test_where_it_works() -> None:
    assert directories({"cwd": "/a", "directories": ["/b", 7]}, {}) == ["/a", "/b"]


def test_answers() -> None:
    assert answer("prompt", {}, "", "") == {}
    assert answer("prompt", {}, "c", "n") == {"context": "c", "notice": "n"}
