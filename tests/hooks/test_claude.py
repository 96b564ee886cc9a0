"""What Claude Code says to its hooks, as events; and what it is told. The fields are those that
Claude Code 2.1.332 sends."""

from __future__ import annotations

from typing import Any

import pytest

from cowfs.agents.claude import hooks, settings

COMMON = {
    "session_id": "5f0c",
    "transcript_path": "/h/.claude/projects/-w/5f0c.jsonl",
    "cwd": "/w",
    "permission_mode": "default",
    "prompt_id": "9a1e",
}
WANTED = {
    "session": "5f0c",
    "transcript": "/h/.claude/projects/-w/5f0c.jsonl",
    "cwd": "/w",
    "prompt_id": "9a1e",
}


def event(name: str, **said: Any) -> dict[str, Any] | None:
    return hooks.event("", {**COMMON, "hook_event_name": name, **said}, {"CLAUDE_PID": "4711"})


def bash(name: str, **more: Any) -> dict[str, Any] | None:
    return event(
        name,
        tool_name="Bash",
        tool_input={"command": "make", "description": "Build"},
        tool_use_id="toolu_1",
        **more,
    )


RUNNING = [
    {"id": "a1", "type": "agent", "status": "running"},
    {"id": "b2", "type": "bash", "status": "running"},
    {"id": "c3", "type": "bash", "status": "completed"},
]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (
            event("SessionStart", source="resume", session_title="Tax"),
            {"event": "session-start", "source": "resume", "title": "Tax"},
        ),
        (event("UserPromptSubmit", prompt="fix it"), {"event": "prompt", "prompt": "fix it"}),
        (
            bash("PreToolUse"),
            {"event": "tool-start", "tool": "Bash", "tool_id": "toolu_1", "tool_text": "make"},
        ),
        (
            bash("PostToolUse", tool_response={"stdout": "", "interrupted": False}, duration_ms=8),
            {"event": "tool-end", "tool": "Bash", "tool_id": "toolu_1", "tool_text": "make"},
        ),
        (
            bash("PostToolUseFailure", error="it failed", agent_id="a1", agent_type="Explore"),
            {
                "event": "tool-end",
                "tool": "Bash",
                "tool_id": "toolu_1",
                "tool_text": "make",
                "subagent": "a1",
                "subagent_kind": "Explore",
                "reason": "it failed",
            },
        ),
        (
            event(
                "PreToolUse",
                tool_name="Write",
                tool_input={"file_path": "/w/a", "content": "x"},
                tool_use_id="t2",
            ),
            {
                "event": "tool-start",
                "tool": "Write",
                "tool_id": "t2",
                "tool_text": "/w/a",
                "tool_path": "/w/a",
            },
        ),
        (
            event("SubagentStart", agent_id="a1", agent_type="Explore"),
            {
                "event": "subagent-start",
                "subagent": "a1",
                "subagent_kind": "Explore",
                "subagent_transcript": "/h/.claude/projects/-w/5f0c/subagents/agent-a1.jsonl",
            },
        ),
        (
            event(
                "SubagentStop",
                agent_id="a1",
                agent_type="Explore",
                agent_transcript_path="/t/agent-a1.jsonl",
                last_assistant_message="Found.",
                background_tasks=RUNNING,
            ),
            {
                "event": "subagent-end",
                "subagent": "a1",
                "subagent_kind": "Explore",
                "subagent_transcript": "/t/agent-a1.jsonl",
                "last_answer": "Found.",
                "background": 1,
            },
        ),
        (event("PreCompact", trigger="auto"), {"event": "compaction", "source": "auto"}),
        (
            event("Stop", last_assistant_message="Done.", background_tasks=RUNNING),
            {"event": "turn-end", "last_answer": "Done.", "background": 2},
        ),
        (event("StopFailure", error="overloaded"), {"event": "turn-end", "reason": "overloaded"}),
        (event("SessionEnd", reason="logout"), {"event": "session-end", "reason": "logout"}),
    ],
)
def test_events(found: dict[str, Any] | None, wanted: dict[str, Any]) -> None:
    assert found == {**WANTED, "pid": 4711, **wanted}


def test_the_end_of_a_task_is_no_prompt() -> None:
    said = "<task-notification>\n<task-id>a1</task-id>\n<status>completed</status>\n"
    found = event("UserPromptSubmit", prompt=said)
    assert found is not None
    assert (found["event"], found["subagent"]) == ("subagent-end", "a1")
    assert "prompt" not in found
    found = event("UserPromptSubmit", prompt="<task-notification>what</task-notification>")
    assert found is not None
    assert found["event"] == "turn-end"


@pytest.mark.parametrize(
    "said",
    [
        {"hook_event_name": "Notification", "session_id": "s"},
        {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Read"},
        {"hook_event_name": "Stop"},
        {"hook_event_name": 7, "session_id": ["s"]},
        {"hook_event_name": "Stop", "session_id": "s", "cursor_version": "2.0"},
        {},
    ],
)
def test_nothing_to_do(said: dict[str, Any]) -> None:
    assert hooks.event("", said, {}) is None


def test_fields_of_other_types_are_as_if_missing() -> None:
    said = {"session_id": "s", "cwd": 7, "transcript_path": None, "background_tasks": {"a": 1}}
    said |= {"prompt_id": [], "last_assistant_message": {}, "agent_id": False}
    assert hooks.event("Stop", said, {"CLAUDE_PID": "x"}) == {"event": "turn-end", "session": "s"}
    said = {"session_id": "s", "tool_name": "Bash", "tool_input": "rm"}
    assert hooks.event("PreToolUse", said, {}) == {
        "event": "tool-start",
        "session": "s",
        "tool": "Bash",
    }


def test_where_the_agent_works() -> None:
    environment = {"CLAUDE_PROJECT_DIR": "/p"}
    assert hooks.directories({"cwd": "/w/src"}, environment) == ["/w/src", "/p"]
    assert hooks.directories({}, {}) == []


def test_answers() -> None:
    said = {"hook_event_name": "PostToolUse"}
    assert hooks.answer("", said, "facts", "") == {
        "hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "facts"}
    }
    assert hooks.answer("UserPromptSubmit", {}, "", "a line") == {"systemMessage": "a line"}
    assert hooks.answer("Stop", {}, "it would go on", "") == {}
    assert hooks.answer("SessionEnd", {}, "", "nobody sees it") == {}


def test_every_event_that_is_installed_is_known() -> None:
    for name, (matcher, _) in settings.EVENTS.items():
        tool = matcher.partition("|")[0]
        assert event(name, tool_name=tool, agent_id="a1", prompt="x") is not None, name


def test_what_is_recognised_as_ours() -> None:
    for command in (
        {"command": "cowfs", "args": ["hook", "claude", "Stop"]},
        {"command": "/opt/v/bin/cowfs", "args": ["hook", "claude"], "timeout": 3},
        {"command": "cowfs hook claude Stop"},
        {"command": "'/home/a b/cowfs' hook claude"},
    ):
        assert settings.is_ours({"type": "command", **command}), command
        assert settings.is_ours({"matcher": "Bash", "hooks": [{"type": "command", **command}]})
    for other in (
        {"command": "cowfs hook codex"},
        {"command": "cowfs", "args": ["checkpoint"]},
        {"command": "notcowfs hook claude"},
        {"command": "echo"},
        {"type": "http", "url": "http://x"},
        {},
    ):
        assert not settings.is_ours(other), other
        assert not settings.is_ours({"hooks": [other]})
    assert not settings.is_ours({"hooks": []})
    assert not settings.is_ours("cowfs hook claude")
