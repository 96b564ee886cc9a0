"""Taking values out of what an agent tells a hook: what has another type than it should have is as
if it were missing.

A hook is run at every prompt and every tool call, so this module imports nothing.

Threading: pure functions.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
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
