"""What a program that has no adapter of its own says to `cowfs hook NAME EVENT`: the parameters of
`session.event` (docs/protocol.md) as a JSON object, of which only `session` is needed. EVENT may
stand in it as `event` instead.

A hook is run at every tool call, so this module imports next to nothing.

Threading: pure functions.
"""

from __future__ import annotations

from cowfs.agents import events
from cowfs.agents.reading_hooks import listed, number, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_TEXTS = (
    "session",
    "subagent",
    "subagent_kind",
    "subagent_transcript",
    "cwd",
    "transcript",
    "prompt",
    "prompt_id",
    "tool_id",
    "tool",
    "tool_text",
    "tool_path",
    "last_answer",
    "source",
    "reason",
    "title",
    "version",
)
_NUMBERS = ("pid", "background")


def event(name: str, said: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The event; None when it is none that cowfs knows, or of no session."""
    found: dict[str, Any] = {"event": name or text(said, "event")}
    if found["event"] not in events.EVENTS or not text(said, "session"):
        return None
    for key in _TEXTS:
        if text(said, key):
            found[key] = text(said, key)
    for key in _NUMBERS:
        if number(said, key):
            found[key] = number(said, key)
    return found


def directories(said: dict[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Where the program works. It may name further ones as `directories`."""
    more = [path for path in listed(said, "directories") if isinstance(path, str)]
    return [path for path in (text(said, "cwd"), *more) if path]


def answer(name: str, said: dict[str, Any], context: str, notice: str) -> dict[str, Any]:
    """context: for the model. notice: for the user. Nothing when both are empty."""
    return {key: part for key, part in (("context", context), ("notice", notice)) if part}
