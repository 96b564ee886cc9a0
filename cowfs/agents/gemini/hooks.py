"""What Gemini CLI says to its hooks.

`PreCompress` is run before every request to the model, whether or not the conversation is about to
be made shorter, so it says nothing. A prompt has no name; the moment at which its event happened is
taken for one: two hooks that are run at the same event hear the same.

At the start of a session that is resumed it names a file that is never used; later the right one.

A hook is run at every tool call, so this module imports next to nothing.

Threading: pure functions.
"""

from __future__ import annotations

from cowfs.agents import events
from cowfs.agents.reading_hooks import answered, inner, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EVENTS = {
    "SessionStart": events.SESSION_START,
    "BeforeAgent": events.PROMPT,
    "BeforeTool": events.TOOL_START,
    "AfterTool": events.TOOL_END,
    "AfterAgent": events.TURN_END,
    "SessionEnd": events.SESSION_END,
}
TOOLS = ("run_shell_command", "write_file", "replace")
"""Those that change files."""
_TOLD = ("SessionStart", "BeforeAgent", "AfterTool")


def event(name: str, said: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The event; None when there is nothing to do."""
    kind = EVENTS.get(name or text(said, "hook_event_name"))
    session = text(said, "session_id") or environment.get("GEMINI_SESSION_ID", "")
    if kind is None or not session:
        return None
    if kind in (events.TOOL_START, events.TOOL_END) and text(said, "tool_name") not in TOOLS:
        return None
    resumed = kind == events.SESSION_START and text(said, "source") == "resume"
    asked = inner(said, "tool_input")
    found = {
        "event": kind,
        "session": session,
        "cwd": text(said, "cwd") or environment.get("GEMINI_CWD", ""),
        "transcript": "" if resumed else text(said, "transcript_path"),
        "tool": text(said, "tool_name"),
        "tool_text": text(asked, "command") or text(asked, "file_path"),
        "tool_path": text(asked, "file_path"),
        "last_answer": text(said, "prompt_response"),
        "source": text(said, "source"),
        "reason": text(said, "reason"),
    }
    if kind == events.PROMPT:
        found["prompt"] = text(said, "prompt")
        found["prompt_id"] = text(said, "timestamp")
    return {field: part for field, part in found.items() if part}


def directories(said: dict[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Where the agent works."""
    places = (
        text(said, "cwd"),
        *(environment.get(f"GEMINI_{at}") for at in ("CWD", "PROJECT_DIR")),
    )
    return [path for path in places if path]


def answer(name: str, said: dict[str, Any], context: str, notice: str) -> dict[str, Any]:
    """At other events than those that take a context it is left out."""
    return answered(name or text(said, "hook_event_name"), _TOLD, context, notice)
