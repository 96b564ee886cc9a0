"""Gemini CLI: what cowfs makes of its chats and hooks. The events are as 0.61.0 sends them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cowfs.agents import events
from cowfs.agents.base import MAIN, START, NotCopyableError
from cowfs.agents.gemini.adapter import Gemini
from cowfs.agents.gemini.hooks import answer, event
from cowfs.agents.gemini.settings import is_ours, settings
from cowfs.agents.settings import PROJECT, USER, Where
from tests.agents.gemini.writing import CONTEXT, FIRST, SESSION, TRANSCRIPT, Chat, write
from tests.agents.talks import Answer, Calls, Said

GEMINI = Gemini()
TALK = (
    Said("one", (Calls((1, 0)), Answer("done one"))),
    Said("two", (Answer("done two"),)),
)


def copy(data: bytes, **more: Any) -> Any:
    where = {"transcript": TRANSCRIPT, "cwd": "/home/ada/shop", "session": SESSION}
    return GEMINI.copy({MAIN: data}, **{**where, **more})


def text_of(chat: Chat) -> bytes:
    return "".join(chat.lines).encode()


# -- reading ---------------------------------------------------------------------------------------


def test_read() -> None:
    read = GEMINI.read({MAIN: write(TALK)})
    assert [turn.prompt for turn in read.turns] == ["one", "two"]
    assert read.turns[0].prompt_id == "m1"
    assert read.turns[0].time == "2026-11-29T10:00:01.000Z"
    assert read.turns[0].leaf == "2"
    assert read.last_answer == "done two"
    assert read.leaf == str(write(TALK).count(b"\n"))
    assert GEMINI.read({}).leaf == START


def test_what_was_taken_back() -> None:
    chat = Chat()
    chat.message("user", [{"text": "one"}])
    chat.message("gemini", "done one")
    chat.message("user", [{"text": "two"}])
    chat.message("gemini", "done two")
    chat.add({"$rewindTo": "m3"})
    read = GEMINI.read({MAIN: text_of(chat)})
    assert [turn.prompt for turn in read.turns] == ["one"]
    assert read.last_answer == "done one"
    chat.add({"$rewindTo": "nowhere"})
    assert GEMINI.read({MAIN: text_of(chat)}).turns == ()


def test_all_messages_anew() -> None:
    """As when a chat goes on in another client; and the title."""
    chat = Chat()
    chat.message("user", [{"text": "one"}])
    kept = {"id": "m1", "type": "user", "content": [{"text": "one!"}], "displayContent": "1"}
    chat.add({"$set": {"messages": [kept], "summary": "Adding"}})
    chat.message("user", [{"text": "two"}])
    read = GEMINI.read({MAIN: text_of(chat)})
    assert [turn.prompt for turn in read.turns] == ["1", "two"]
    assert [turn.leaf for turn in read.turns] == ["2", "5"]
    assert read.title == "Adding"


def test_a_chat_of_an_older_version() -> None:
    document = {**FIRST, "messages": [{"id": "a", "type": "user", "content": "add"}]}
    text = json.dumps(document, indent=2).encode()
    read = GEMINI.read({MAIN: text})
    assert ([turn.prompt for turn in read.turns], read.leaf) == (["add"], "")
    [source] = GEMINI.sources("/x/session-1.json")
    assert source.kind == "whole"
    with pytest.raises(NotCopyableError):
        copy(text, transcript="/x/session-2026-11-29T10-00-813b408b.json")


def test_whether_the_last_answer_is_there() -> None:
    """The hook gets all that was said in the turn, joined."""
    whole = write((Said("one", (Answer("I begin."), Answer("Done."))),))
    assert GEMINI.complete({MAIN: whole}, "I begin.\nDone.")
    begun = whole[: whole.index(b'"Done."')].rpartition(b"\n")[0] + b"\n"
    assert not GEMINI.complete({MAIN: begun}, "I begin.\nDone.")
    assert not GEMINI.complete({MAIN: b""}, "Done.")


# -- copies ----------------------------------------------------------------------------------------


def test_what_a_copy_changes() -> None:
    """The id, and it has a name that is not derived from that: the client would delete it."""
    chat = Chat()
    chat.add({"$set": {"sessionId": SESSION}})
    whole = text_of(chat) + b"".join(write(TALK).splitlines(keepends=True)[2:])
    made = copy(whole)
    [(path, body)] = made.files.items()
    name = re.fullmatch(r"/.*/chats/session-2026-11-29T10-00-([0-9a-f]{8})\.jsonl", path)
    assert name
    assert name[1] not in (made.session[:8], SESSION[:8])
    before, after = (list(map(json.loads, text.splitlines())) for text in (whole, body))
    assert after[0] == {**before[0], "sessionId": made.session}
    assert after[2] == {"$set": {"sessionId": made.session}}
    assert body.splitlines()[3:-1] == whole.splitlines()[3:-1]
    assert list(after[-1]["$set"]) == ["lastUpdated"]
    assert made.command == ("gemini", "--resume", made.session)


def test_what_a_client_says_again_when_it_goes_on_is_left_out() -> None:
    """It would send the answers of tools twice. What it makes shorter is another matter."""
    whole = write(TALK)
    read = [json.loads(line) for line in whole.splitlines()]
    messages = [record for record in read if "id" in record]
    chat = Chat()
    chat.lines = whole.decode().splitlines(keepends=True)
    chat.add({"$set": {"messages": [CONTEXT, messages[0], *messages]}})
    [body] = copy(text_of(chat)).files.values()
    assert body.count(b'"messages"') == 1
    summary = {"id": "s", "type": "gemini", "content": "You added."}
    chat.add({"$set": {"messages": [summary]}})
    [body] = copy(text_of(chat)).files.values()
    assert GEMINI.read({MAIN: body}).last_answer == "You added."


def test_where_a_copy_goes_on(tmp_path: Path) -> None:
    """In the directory that the chat belongs to, for it is found nowhere else."""
    chats = tmp_path / "shop" / "chats"
    chats.mkdir(parents=True)
    (tmp_path / "shop" / ".project_root").write_text("/home/ada/shop")
    made = copy(write(TALK), transcript=str(chats / Path(TRANSCRIPT).name), cwd="/elsewhere")
    assert made.cwd == "/home/ada/shop"


def test_a_call_that_is_under_way() -> None:
    """The message of the model is empty until what it called has answered."""
    chat = Chat()
    chat.message("user", [{"text": "one"}])
    chat.message("gemini", "")
    with pytest.raises(NotCopyableError):
        copy(text_of(chat))


def test_where_the_files_are(tmp_path: Path) -> None:
    chats = tmp_path / "chats"
    below, outputs = chats / SESSION, tmp_path / "tool-outputs" / f"session-{SESSION}"
    for directory in (below, outputs):
        directory.mkdir(parents=True)
    main = chats / Path(TRANSCRIPT).name
    main.write_bytes(write(TALK))
    (below / "agent.jsonl").touch()
    (outputs / "shell_1.txt").touch()
    (outputs / "link.txt").symlink_to("/etc/passwd")
    assert [(source.name, source.path, source.kind) for source in GEMINI.sources(str(main))] == [
        (MAIN, str(main), "lines"),
        (f"{SESSION}/agent.jsonl", str(below / "agent.jsonl"), "lines"),
        (f"tool-outputs/session-{SESSION}/shell_1.txt", str(outputs / "shell_1.txt"), "whole"),
    ]
    main.write_text('{"sessionId": "../../../../etc"}\n')
    assert len(GEMINI.sources(str(main))) == 1


# -- hooks -----------------------------------------------------------------------------------------

SAID = {
    "session_id": SESSION,
    "transcript_path": TRANSCRIPT,
    "cwd": "/home/ada/shop",
    "timestamp": "2026-11-29T10:00:01.707Z",
}


def test_a_prompt() -> None:
    """It has no name; two hooks that are run at the same prompt hear the same moment."""
    assert event("BeforeAgent", {**SAID, "prompt": "one"}, {}) == {
        "event": events.PROMPT,
        "session": SESSION,
        "cwd": "/home/ada/shop",
        "transcript": TRANSCRIPT,
        "prompt": "one",
        "prompt_id": "2026-11-29T10:00:01.707Z",
    }


def test_the_start_of_a_session_that_is_resumed_names_the_wrong_file() -> None:
    for source, named in (("startup", True), ("resume", False)):
        made = event("SessionStart", {**SAID, "source": source}, {})
        assert made is not None
        assert ("transcript" in made) == named


def test_tools() -> None:
    said = {**SAID, "tool_name": "write_file", "tool_input": {"file_path": "/w/a", "content": ""}}
    made = event("BeforeTool", said, {})
    assert made is not None
    assert (made["tool_text"], made["tool_path"]) == ("/w/a", "/w/a")
    assert event("AfterTool", {**said, "tool_name": "read_file"}, {}) is None


def test_nothing_is_about_to_be_made_shorter_whatever_is_said() -> None:
    assert event("PreCompress", {**SAID, "trigger": "auto"}, {}) is None


def test_answers() -> None:
    assert answer("AfterTool", {}, "2 files", "look") == {
        "systemMessage": "look",
        "hookSpecificOutput": {"hookEventName": "AfterTool", "additionalContext": "2 files"},
    }
    assert answer("SessionEnd", {}, "2 files", "") == {}


def test_settings() -> None:
    [user] = settings(Where(USER, "/home/ada", "/w", {}))
    assert (user.path, user.comments) == ("/home/ada/.gemini/settings.json", True)
    by_event = {entry.at[1]: entry.value for entry in user.entries}
    assert "PreCompress" not in by_event
    [handler] = by_event["BeforeTool"]["hooks"]
    assert (handler["command"], handler["timeout"]) == ("cowfs hook gemini BeforeTool", 30_000)
    assert all(map(is_ours, by_event.values()))
    [project] = settings(Where(PROJECT, "/home/ada", "/w", {}))
    assert project.path == "/w/.gemini/settings.json"
