"""What Codex CLI says to its hooks: Claude Code's events, with `turn_id` for the prompt.

A hook is run at every tool call, so this module imports next to nothing.

Threading: pure functions.
"""

from __future__ import annotations

from cowfs.agents import events
from cowfs.agents.reading_hooks import answered, inner, listed, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EVENTS = {
    "SessionStart": events.SESSION_START,
    "UserPromptSubmit": events.PROMPT,
    "PreToolUse": events.TOOL_START,
    "PostToolUse": events.TOOL_END,
    "SubagentStart": events.SUBAGENT_START,
    "SubagentStop": events.SUBAGENT_END,
    "PreCompact": events.COMPACTION,
    "Stop": events.TURN_END,
    "SessionEnd": events.SESSION_END,
}
TOOLS = ("Bash", "apply_patch", "Edit", "Write")
"""Those that change files: a command is `Bash` to hooks, whatever the tool is called."""
_TOLD = ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "SubagentStart")


def event(name: str, said: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The event; None when there is nothing to do. A sub-agent is given its task by the same hook
    as a user's prompt."""
    kind = EVENTS.get(name or text(said, "hook_event_name"))
    subagent, tool = text(said, "agent_id"), text(said, "tool_name")
    if kind is None or not text(said, "session_id") or (subagent and kind == events.PROMPT):
        return None
    if kind in (events.TOOL_START, events.TOOL_END) and tool not in TOOLS:
        return None
    asked = inner(said, "tool_input")
    path = text(said, "transcript_path")
    command = " ".join(word for word in listed(asked, "command") if isinstance(word, str))
    found = {
        "event": kind,
        "session": text(said, "session_id"),
        "subagent": subagent,
        "subagent_kind": text(said, "agent_type"),
        "subagent_transcript": text(said, "agent_transcript_path") or (path if subagent else ""),
        "cwd": text(said, "cwd"),
        "transcript": "" if subagent else path,
        "prompt": text(said, "prompt"),
        "prompt_id": text(said, "turn_id"),
        "tool_id": text(said, "tool_use_id"),
        "tool": tool,
        "tool_text": text(asked, "command") or command or text(asked, "file_path"),
        "tool_path": text(asked, "file_path"),
        "last_answer": text(said, "last_assistant_message"),
        "source": text(said, "source"),
        "reason": text(said, "reason"),
    }
    return {field: part for field, part in found.items() if part}


def directories(said: dict[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Where the agent works."""
    return [path for path in (text(said, "cwd"),) if path]


def answer(name: str, said: dict[str, Any], context: str, notice: str) -> dict[str, Any]:
    """At other events than those that take a context it is left out."""
    return answered(name or text(said, "hook_event_name"), _TOLD, context, notice)
