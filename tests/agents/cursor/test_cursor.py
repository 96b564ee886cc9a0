"""Cursor: what cowfs makes of its transcripts and hooks. The events are as its documentation says;
it needs an account, so they were not seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cowfs.agents import events
from cowfs.agents.base import MAIN, START, NotCopyableError, Turn
from cowfs.agents.cursor.adapter import Cursor
from cowfs.agents.cursor.hooks import answer, directories, event, is_cursor
from cowfs.agents.cursor.settings import is_ours, settings
from cowfs.agents.settings import PROJECT, USER, Where

CURSOR = Cursor()


def line(role: str, *content: dict[str, Any]) -> bytes:
    return json.dumps({"role": role, "message": {"content": list(content)}}).encode() + b"\n"


def say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_read() -> None:
    talk = line("user", say("<user_query>\nadd them up\n</user_query>"))
    talk += line("assistant", say("I look."), {"type": "tool_use", "name": "Read", "input": {}})
    talk += line("assistant", say("Done."))
    talk += line("user", say("once more"))
    read = CURSOR.read({MAIN: talk})
    assert read.turns == (Turn("add them up", leaf=START), Turn("once more", leaf="3"))
    assert (read.last_answer, read.leaf) == ("Done.", "4")
    assert CURSOR.read({MAIN: b"user:\nadd them up\n\nassistant:\nDone.\n"}).turns == ()


def test_there_is_no_copy() -> None:
    with pytest.raises(NotCopyableError, match="database"):
        CURSOR.copy({}, transcript="/t/a.jsonl", cwd="/w", session="a")


def test_where_the_files_are(tmp_path: Path) -> None:
    (tmp_path / "subagents").mkdir()
    (tmp_path / "subagents" / "b.jsonl").touch()
    found = CURSOR.sources(str(tmp_path / "a.jsonl"))
    assert [source.name for source in found] == [MAIN, "subagents/b.jsonl"]
    assert [source.kind for source in CURSOR.sources("/t/a.txt")] == ["whole"]


SAID = {
    "conversation_id": "c",
    "generation_id": "g",
    "cursor_version": "3.5.38",
    "workspace_roots": ["/home/ada/shop"],
    "transcript_path": "/t/c/c.jsonl",
}


def test_a_prompt() -> None:
    assert event("beforeSubmitPrompt", {**SAID, "prompt": "add"}, {}) == {
        "event": events.PROMPT,
        "session": "c",
        "cwd": "/home/ada/shop",
        "transcript": "/t/c/c.jsonl",
        "prompt": "add",
        "prompt_id": "g",
        "version": "3.5.38",
    }


def test_tools() -> None:
    said = {**SAID, "tool_name": "Shell", "tool_input": {"command": "make"}, "cwd": "/home/ada/x"}
    for name, kind in (("preToolUse", events.TOOL_START), ("postToolUseFailure", events.TOOL_END)):
        made = event(name, said, {})
        assert made is not None
        assert (made["event"], made["tool_text"], made["cwd"]) == (kind, "make", "/home/ada/x")
    assert event("preToolUse", {**said, "tool_name": "Read"}, {}) is None


def test_a_sub_agent() -> None:
    """Only its start has an id; its end has the path of its transcript."""
    said = {**SAID, "subagent_id": "b", "subagent_type": "explore", "parent_conversation_id": "c"}
    started = event("subagentStart", said, {})
    ended = event("subagentStop", {**SAID, "agent_transcript_path": "/t/c/subagents/b.jsonl"}, {})
    for made in (started, ended):
        assert made is not None
        assert (made["session"], made["subagent"]) == ("c", "b")


def test_that_it_is_cursor() -> None:
    assert is_cursor(SAID, {})
    assert is_cursor({}, {"CURSOR_VERSION": "3.5.38"})
    assert not is_cursor({"session_id": "s"}, {"CLAUDE_PROJECT_DIR": "/w"})


def test_where_it_works() -> None:
    environment = {"CURSOR_PROJECT_DIR": "/p"}
    assert directories({**SAID, "cwd": "/x"}, environment) == ["/x", "/home/ada/shop", "/p"]


def test_it_always_gets_json() -> None:
    assert answer("stop", {}, "a", "b") == "{}"
    assert answer("beforeSubmitPrompt", {}, "a", "b") == "{}"
    assert answer("postToolUse", {}, "2 files", "") == {"additional_context": "2 files"}
    assert answer("preCompact", {}, "", "look") == {"user_message": "look"}


def test_settings() -> None:
    [user] = settings(Where(USER, "/home/ada", "/w", {}))
    assert user.path == "/home/ada/.cursor/hooks.json"
    assert [(default.at, default.value) for default in user.defaults] == [(("version",), 1)]
    by_event = {entry.at[1]: entry.value for entry in user.entries}
    assert by_event["stop"] == {"command": "cowfs hook cursor stop", "timeout": 30}
    assert by_event["preToolUse"]["matcher"] == "Shell|Write|Delete"
    assert all(map(is_ours, by_event.values()))
    [project] = settings(Where(PROJECT, "/home/ada", "/w", {}))
    assert project.path == "/w/.cursor/hooks.json"
