"""What Claude Code tells its hooks, as events, and what it takes as an answer.

The fields are those of Claude Code 2.1.332; those that an older one does not send are left out.
A hook is run at every prompt and every tool call, so this module imports next to nothing.

Every agent's module `hooks` has these three functions:

event(name, said, environment): the parameters of `session.event` (docs/protocol.md) but for those
that `cowfs hook` adds (agent, environment, hidden, wait, and pid if the agent does not say it);
None when nothing is to be done. name: of the event, as on the command line, "" when it is not
given; said: the JSON object that came on stdin.
directories(said, environment): where the agent works, the likeliest first. The first one that is in
a mounted workspace counts.
answer(name, said, context, notice): what to print: an object, as JSON, or a text. context: facts
for the model; notice: a line for the user; both may be "".

Threading: pure functions.
"""

from __future__ import annotations

from cowfs.agents import events
from cowfs.agents.reading_hooks import answered, inner, listed, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_KINDS = {
    "SessionStart": events.SESSION_START,
    "UserPromptSubmit": events.PROMPT,
    "PreToolUse": events.TOOL_START,
    "PostToolUse": events.TOOL_END,
    "PostToolUseFailure": events.TOOL_END,
    "SubagentStart": events.SUBAGENT_START,
    "SubagentStop": events.SUBAGENT_END,
    "PreCompact": events.COMPACTION,
    "Stop": events.TURN_END,
    "StopFailure": events.TURN_END,
    "SessionEnd": events.SESSION_END,
}
TOOLS = ("Bash", "Edit", "Write", "MultiEdit", "NotebookEdit")
"""Those that change files."""
_TOLD = ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure")
"""Events at which the model may be told something. At `Stop` that would make it go on."""
_NOTIFICATION = "<task-notification>"
"""What a prompt begins with that no user has typed: a task in the background has ended."""
_LONGEST = 4000


def event(name: str, said: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """See the module."""
    name = name or text(said, "hook_event_name")
    kind, session = _KINDS.get(name), text(said, "session_id")
    if kind is None or not session or text(said, "cursor_version"):
        return None  # Cursor runs the hooks of Claude Code, too; it has its own
    found: dict[str, Any] = {
        "event": kind,
        "session": session,
        "cwd": text(said, "cwd"),
        "transcript": text(said, "transcript_path"),
        "prompt_id": text(said, "prompt_id"),
        "title": text(said, "session_title"),
        "subagent": text(said, "agent_id"),
        "subagent_kind": text(said, "agent_type") if text(said, "agent_id") else "",
    }
    pid = environment.get("CLAUDE_PID", "")
    if pid.isdecimal() and len(pid) < 10:
        found["pid"] = int(pid)
    if kind == events.PROMPT:
        _prompt(found, text(said, "prompt"))
    elif kind in (events.TOOL_START, events.TOOL_END):
        if text(said, "tool_name") not in TOOLS:
            return None
        _tool(found, said)
    elif kind in (events.SUBAGENT_START, events.SUBAGENT_END):
        found["subagent_transcript"] = text(said, "agent_transcript_path") or _beside(found)
    found["background"] = _running(said, found["subagent"])
    found["last_answer"] = text(said, "last_assistant_message")[-_LONGEST:]
    found["source"] = text(said, "source") or text(said, "trigger")
    found["reason"] = text(said, "reason") or text(said, "error")
    return {field: value for field, value in found.items() if value}


def _prompt(found: dict[str, Any], prompt: str) -> None:
    """Somebody asks something, or a sub-agent in the background has ended."""
    if not prompt.startswith(_NOTIFICATION):
        found["prompt"] = prompt
        return
    found["event"] = events.SUBAGENT_END
    found["subagent"] = prompt.partition("<task-id>")[2].partition("</task-id>")[0].strip()
    if not found["subagent"]:
        found["event"] = events.TURN_END  # of a turn that nobody hears of otherwise


def _tool(found: dict[str, Any], said: dict[str, Any]) -> None:
    given = inner(said, "tool_input")
    found["tool"] = text(said, "tool_name")
    found["tool_id"] = text(said, "tool_use_id")
    path = text(given, "file_path") or text(given, "notebook_path")
    found["tool_text"] = (text(given, "command") or path)[:_LONGEST]
    found["tool_path"] = path


def _beside(found: dict[str, Any]) -> str:
    """Where a sub-agent's conversation lies."""
    main = found["transcript"].removesuffix(".jsonl")
    return f"{main}/subagents/agent-{found['subagent']}.jsonl" if main else ""


def _running(said: dict[str, Any], subagent: str) -> int:
    """How many tasks go on. A sub-agent that stops still lists itself."""
    return sum(
        text(task, "status") == "running" and text(task, "id") != (subagent or None)
        for task in listed(said, "background_tasks")
    )


def directories(said: dict[str, Any], environment: Mapping[str, str]) -> list[str]:
    """See the module."""
    found = (text(said, "cwd"), environment.get("CLAUDE_PROJECT_DIR", ""))
    return [path for path in found if path]


def answer(name: str, said: dict[str, Any], context: str, notice: str) -> dict[str, Any]:
    """See the module."""
    name = name or text(said, "hook_event_name")
    return answered(name, _TOLD, context, notice if name != "SessionEnd" else "")
