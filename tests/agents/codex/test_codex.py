"""Codex CLI: what cowfs makes of its rollouts and hooks. The events are as 0.171.0 sends them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cowfs.agents import events
from cowfs.agents.base import MAIN, START, NotCopyableError, Turn
from cowfs.agents.codex.adapter import Codex
from cowfs.agents.codex.hooks import answer, event
from cowfs.agents.codex.settings import is_ours, settings
from cowfs.agents.settings import PROJECT, USER, Where
from tests.agents.codex.writing import META, SESSION, TRANSCRIPT, write
from tests.agents.talks import Answer, Calls, Said

CODEX = Codex()
OTHER = "019ad4c1-0000-7000-8000-00000000000"
TALK = (
    Said("one", (Calls((1, 0)), Answer("done one"))),
    Said("two", (Answer("done two"),)),
)


def line(kind: str, payload: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"type": kind, "payload": payload, **more}).encode() + b"\n"


def copy(files: dict[str, bytes], **more: Any) -> Any:
    where = {"transcript": TRANSCRIPT, "cwd": "", "session": SESSION}
    return CODEX.copy(files, **{**where, **more})


# -- reading ---------------------------------------------------------------------------------------


def test_read() -> None:
    read = CODEX.read({MAIN: write(TALK)})
    assert [(turn.prompt, turn.prompt_id) for turn in read.turns] == [
        ("one", "turn-1"),
        ("two", "turn-2"),
    ]
    assert read.turns[0].time == "2026-11-29T10:00:06.000Z"
    assert (read.cwd, read.version) == ("/home/ada/shop", "0.171.0")
    assert read.last_answer == "done two"
    assert read.leaf == str(write(TALK).count(b"\n"))
    assert CODEX.read({}).leaf == START


def test_prompts_as_older_versions_tell_of_them() -> None:
    told = line("event_msg", {"type": "task_started", "turn_id": "t"})
    told += line("event_msg", {"type": "user_message", "message": "add"})
    assert CODEX.read({MAIN: told}).turns == (Turn("add", "t", "", START),)
    item = {"type": "UserMessage", "content": [{"type": "text", "text": "add"}]}
    told += line("event_msg", {"type": "item_completed", "item": item})
    assert len(CODEX.read({MAIN: told}).turns) == 1


def test_turns_that_were_taken_back() -> None:
    back = line("event_msg", {"type": "thread_rolled_back", "num_turns": 1})
    assert [turn.prompt for turn in CODEX.read({MAIN: write(TALK) + back}).turns] == ["one"]


def test_whether_the_last_answer_is_there() -> None:
    whole = write(TALK)
    assert CODEX.complete({MAIN: whole[-2000:]}, "done two\n")
    assert not CODEX.complete({MAIN: whole}, "done three")
    assert CODEX.complete({MAIN: b""}, "")


# -- copies ----------------------------------------------------------------------------------------


def test_what_a_copy_changes() -> None:
    """The id, in the name and in the first line; all other lines stay as they are."""
    whole = write(TALK)
    made = copy({MAIN: whole})
    [(path, body)] = made.files.items()
    assert path == TRANSCRIPT.replace(SESSION, made.session)
    assert body.splitlines()[1:] == whole.splitlines()[1:]
    first = json.loads(body.splitlines()[0])
    expected = {**META, "id": made.session, "session_id": made.session}
    assert first == {**json.loads(whole.splitlines()[0]), "payload": expected}
    assert made.command == ("codex", "resume", made.session)
    assert (made.cwd, made.before, made.notes) == ("/home/ada/shop", (), ())


def test_a_copy_of_one_that_was_archived_can_be_resumed() -> None:
    archived = TRANSCRIPT.replace("/sessions/2026/11/29/", "/archived_sessions/")
    made = copy({MAIN: write(TALK)}, transcript=archived)
    assert list(made.files) == [TRANSCRIPT.replace(SESSION, made.session)]


def test_a_conversation_that_was_made_shorter() -> None:
    """What it was replaced by is enough to go on from, whatever was open before."""
    call = {"type": "function_call", "name": "exec_command", "call_id": "call_9"}
    shorter = {"message": "You added them.", "replacement_history": []}
    whole = write(TALK) + line("response_item", call) + line("compacted", shorter)
    made = copy({MAIN: whole})
    [body] = made.files.values()
    assert (made.notes, body.count(b"\n")) == ((), whole.count(b"\n"))
    assert [turn.prompt for turn in CODEX.read({MAIN: whole}).turns] == ["one", "two"]


@pytest.mark.parametrize(
    ("files", "more"),
    [
        ({}, {}),
        ({MAIN: write(TALK)}, {"transcript": "/x/talk.jsonl"}),
        ({MAIN: write(TALK)}, {"leaf": "999"}),
        ({MAIN: write(TALK)}, {"leaf": START}),
        ({MAIN: write(TALK)}, {"leaf": "7"}),
        ({MAIN: b"".join(write(TALK).splitlines(keepends=True)[1:])}, {}),
    ],
    ids=["empty", "name", "leaf", "beginning", "unanswered", "no-first-line"],
)
def test_what_cannot_be_copied(files: dict[str, bytes], more: dict[str, Any]) -> None:
    with pytest.raises(NotCopyableError):
        copy(files, **more)


# -- forks and sub-agents --------------------------------------------------------------------------


def fork(parent: str, before: int, talk: tuple[Said, ...], name: str) -> bytes:
    """A rollout that goes on from another one, as `codex exec fork` makes it."""
    first, *rest = (json.loads(text) for text in write(talk).splitlines())
    first["payload"] |= {"id": name, "session_id": name, "forked_from_id": parent}
    first["payload"]["forked_from_ordinal_exclusive"] = before
    lines = [first, *rest]
    for number, made in enumerate(lines, before):
        made["ordinal"] = number
    return b"".join(json.dumps(made).encode() + b"\n" for made in lines)


def test_a_fork_is_read_and_copied_with_what_it_came_from() -> None:
    whole = write(TALK)
    before = next(at for at, text in enumerate(whole.splitlines()) if b"turn-2" in text)
    files = {
        MAIN: fork(SESSION, before, (Said("three", (Answer("done three"),)),), OTHER + "1"),
        f"rollout-2026-11-29T10-00-00-{SESSION}.jsonl": whole,
    }
    assert [turn.prompt for turn in CODEX.read(files).turns] == ["one", "three"]
    made = copy(files, session=OTHER + "1")
    [body] = made.files.values()
    assert [turn.prompt for turn in CODEX.read({MAIN: body}).turns] == ["one", "three"]
    assert "forked_from_id" not in json.loads(body.splitlines()[0])["payload"]
    assert body.splitlines()[1:before] == whole.splitlines()[1:before]
    earlier = copy(files, session=OTHER + "1", leaf=CODEX.read(files).turns[1].leaf)
    [body] = earlier.files.values()
    assert [turn.prompt for turn in CODEX.read({MAIN: body}).turns] == ["one"]


def test_a_fork_whose_origin_is_gone() -> None:
    alone = {MAIN: fork(SESSION, 9, TALK, OTHER + "1")}
    assert [turn.prompt for turn in CODEX.read(alone).turns] == ["one", "two"]
    [body] = copy(alone, session=OTHER + "1").files.values()
    assert json.loads(body.splitlines()[0])["payload"]["forked_from_id"] == SESSION


def test_forks_of_each_other_end() -> None:
    files = {MAIN: fork(OTHER + "1", 9, TALK, SESSION)}
    files[f"rollout-x-{OTHER}1.jsonl"] = fork(SESSION, 9, TALK, OTHER + "1")
    assert CODEX.read(files).turns


def test_where_the_files_are(tmp_path: Path) -> None:
    """Sub-agents, those that they started, and what a fork came from, in whatever directory."""
    today, yesterday = (tmp_path / "sessions" / "2026" / "11" / day for day in ("29", "28"))
    for directory in (today, yesterday):
        directory.mkdir(parents=True)

    def rollout(directory: Path, name: str, **more: str) -> Path:
        path = directory / f"rollout-2026-11-29T10-00-00-{name}.jsonl"
        path.write_bytes(line("session_meta", {"id": name, **more}))
        return path

    origin = rollout(yesterday, OTHER + "1")
    main = rollout(today, SESSION, forked_from_id=OTHER + "1")
    agent = rollout(today, OTHER + "2", parent_thread_id=SESSION)
    below = rollout(today, OTHER + "3", parent_thread_id=OTHER + "2")
    rollout(today, OTHER + "4")
    (today / "rollout-x.jsonl").touch()
    found = CODEX.sources(str(main))
    assert (found[0].name, found[0].path) == (MAIN, str(main))
    assert {(source.name, source.path) for source in found[1:]} == {
        (path.name, str(path)) for path in (origin, agent, below)
    }
    assert {source.kind for source in found} == {"lines"}
    assert len(CODEX.sources(str(tmp_path / "nowhere" / main.name))) == 1


# -- hooks -----------------------------------------------------------------------------------------

SAID = {
    "session_id": SESSION,
    "turn_id": "turn-1",
    "transcript_path": TRANSCRIPT,
    "cwd": "/home/ada/shop",
    "model": "stub-model",
    "permission_mode": "bypassPermissions",
}


def test_a_prompt() -> None:
    said = {**SAID, "hook_event_name": "UserPromptSubmit", "prompt": "one"}
    assert event("", said, {}) == {
        "event": events.PROMPT,
        "session": SESSION,
        "cwd": "/home/ada/shop",
        "transcript": TRANSCRIPT,
        "prompt": "one",
        "prompt_id": "turn-1",
    }


def test_tools() -> None:
    said = {**SAID, "tool_name": "Bash", "tool_input": {"command": "make"}, "tool_use_id": "c"}
    made = event("PreToolUse", said, {})
    assert made is not None
    assert (made["event"], made["tool"], made["tool_text"]) == (events.TOOL_START, "Bash", "make")
    assert event("PreToolUse", {**said, "tool_name": "spawn_agent"}, {}) is None


def test_a_sub_agent() -> None:
    """Its own rollout is named instead of the session's, but for its end; its task is no prompt."""
    own = TRANSCRIPT.replace(SESSION, OTHER + "2")
    said = {**SAID, "agent_id": OTHER + "2", "agent_type": "default", "transcript_path": own}
    assert event("UserPromptSubmit", {**said, "prompt": "count"}, {}) is None
    started = event("SubagentStart", said, {})
    ended = event(
        "SubagentStop", {**said, "transcript_path": TRANSCRIPT, "agent_transcript_path": own}, {}
    )
    for made in (started, ended):
        assert made is not None
        assert (made["session"], made["subagent"]) == (SESSION, OTHER + "2")
        assert made["subagent_transcript"] == own
        assert "transcript" not in made


def test_what_is_no_event() -> None:
    assert event("PermissionRequest", SAID, {}) is None
    assert event("Stop", {}, {}) is None


def test_answers() -> None:
    assert answer("PostToolUse", {}, "", "") == {}
    assert answer("PostToolUse", {}, "2 files", "") == {
        "hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "2 files"}
    }
    assert answer("Stop", {}, "2 files", "look") == {"systemMessage": "look"}


def test_settings() -> None:
    [user] = settings(Where(USER, "/home/ada", "/w", {}, ("/opt/cow fs/cowfs",)))
    assert user.path == "/home/ada/.codex/hooks.json"
    assert any("/hooks" in note for note in user.notes)
    by_event = {entry.at: entry.value for entry in user.entries}
    stop = {"type": "command", "command": "'/opt/cow fs/cowfs' hook codex Stop", "timeout": 30}
    assert by_event["hooks", "Stop"] == {"hooks": [stop]}
    assert by_event["hooks", "PreToolUse"]["matcher"] == "^(Bash|apply_patch|Edit|Write)$"
    assert all(is_ours(value) for value in by_event.values())
    [project] = settings(Where(PROJECT, "/home/ada", "/w", {"CODEX_HOME": "/c"}))
    assert project.path == "/w/.codex/hooks.json"
    assert all(is_ours(entry.value) for entry in project.entries)
    [moved] = settings(Where(USER, "/home/ada", "/w", {"CODEX_HOME": "/c"}))
    assert moved.path == "/c/hooks.json"
