"""What Cursor says to its hooks.

Cursor also runs the hooks that are configured for Claude Code. It is recognised by `cursor_version`
or `CURSOR_VERSION`, never by `CLAUDE_PROJECT_DIR`, which it sets as well.

A hook is run at every tool call, so this module imports next to nothing.

Threading: pure functions.
"""

from __future__ import annotations

from cowfs.agents import events
from cowfs.agents.reading_hooks import inner, listed, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EVENTS = {
    "sessionStart": events.SESSION_START,
    "beforeSubmitPrompt": events.PROMPT,
    "preToolUse": events.TOOL_START,
    "postToolUse": events.TOOL_END,
    "postToolUseFailure": events.TOOL_END,
    "subagentStart": events.SUBAGENT_START,
    "subagentStop": events.SUBAGENT_END,
    "preCompact": events.COMPACTION,
    "stop": events.TURN_END,
    "sessionEnd": events.SESSION_END,
}
TOOLS = ("Shell", "Write", "Delete")
"""Those that change files."""
_TOLD = ("sessionStart", "postToolUse")


def is_cursor(said: dict[str, Any], environment: Mapping[str, str]) -> bool:
    """Whether a hook is run by Cursor, whoever it was configured for."""
    return bool(text(said, "cursor_version") or environment.get("CURSOR_VERSION"))


def event(name: str, said: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The event; None when there is nothing to do."""
    kind = EVENTS.get(name or text(said, "hook_event_name"))
    session = (
        text(said, "parent_conversation_id")
        or text(said, "conversation_id")
        or text(said, "session_id")
    )
    if kind is None or not session:
        return None
    if kind in (events.TOOL_START, events.TOOL_END) and text(said, "tool_name") not in TOOLS:
        return None
    asked = inner(said, "tool_input")
    path = text(asked, "file_path") or text(asked, "path")
    transcript = text(said, "agent_transcript_path")
    stem = transcript.rpartition("/")[2].rpartition(".")[0]
    places = directories(said, environment)
    found = {
        "event": kind,
        "session": session,
        "subagent": text(said, "subagent_id") or (stem if kind == events.SUBAGENT_END else ""),
        "subagent_kind": text(said, "subagent_type"),
        "subagent_transcript": transcript,
        "cwd": places[0] if places else "",
        "transcript": text(said, "transcript_path")
        or environment.get("CURSOR_TRANSCRIPT_PATH", ""),
        "prompt": text(said, "prompt"),
        "prompt_id": text(said, "generation_id"),
        "tool_id": text(said, "tool_use_id"),
        "tool": text(said, "tool_name"),
        "tool_text": text(asked, "command") or path,
        "tool_path": path,
        "reason": text(said, "reason") or text(said, "status"),
        "version": text(said, "cursor_version") or environment.get("CURSOR_VERSION", ""),
    }
    return {field: part for field, part in found.items() if part}


def directories(said: dict[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Where the agent works. The hook itself is run in `~/.cursor`, or in the project's root."""
    roots = [path for path in listed(said, "workspace_roots") if isinstance(path, str)]
    places = (text(said, "cwd"), *roots, environment.get("CURSOR_PROJECT_DIR", ""))
    return [path for path in places if path]


def answer(name: str, said: dict[str, Any], context: str, notice: str) -> dict[str, Any] | str:
    """An object, always: what is no JSON is a failure to Cursor. Only some events take something
    for the model, and only `preCompact` something for the user; what nobody can take is left
    out."""
    name = name or text(said, "hook_event_name")
    both = "\n".join(part for part in (notice, context) if part)
    if both and name in _TOLD:
        return {"additional_context": both}
    if notice and name == "preCompact":
        return {"user_message": notice}
    return "{}"
