"""What hooks of agents have in common: taking values out of what the agent tells, where what has
another type than it should have is as if it were missing; and the answer that several agents take.

A hook is run at every prompt and every tool call, so this module imports nothing.

Threading: pure functions.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any


def text(said: object, name: str) -> str:
    """A text, "" when there is none."""
    found = said.get(name) if isinstance(said, dict) else None
    return found if isinstance(found, str) else ""


def number(said: object, name: str) -> int:
    """A whole number that is not negative, 0 when there is none."""
    found = said.get(name) if isinstance(said, dict) else None
    return found if type(found) is int and found >= 0 else 0


def inner(said: object, name: str) -> dict[str, Any]:
    """An object in it, {} when there is none."""
    found = said.get(name) if isinstance(said, dict) else None
    return found if isinstance(found, dict) else {}


def listed(said: object, name: str) -> list[Any]:
    """A list in it, [] when there is none."""
    found = said.get(name) if isinstance(said, dict) else None
    return found if isinstance(found, list) else []


def answered(name: str, told: Container[str], context: str, notice: str) -> dict[str, Any]:
    """What a hook prints in Claude Code's protocol, which others have taken over, at an event of
    that name. context: for the model, left out at events that are not in `told`, which take none;
    notice: for the user."""
    out: dict[str, Any] = {}
    if notice:
        out["systemMessage"] = notice
    if context and name in told:
        out["hookSpecificOutput"] = {"hookEventName": name, "additionalContext": context}
    return out
