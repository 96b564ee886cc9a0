"""The hooks of Cursor: `hooks.json` in `.cursor` of the user, or of a project.

Threading: pure functions.
"""

from __future__ import annotations

import os
import shlex

from cowfs.agents.cursor.hooks import EVENTS, TOOLS
from cowfs.agents.settings import USER, Default, Entry, Settings, Where, runs

_TIMEOUT = 30
"""Seconds."""
_TOOLS = "|".join(TOOLS)
_NOTES = (
    "Cursor also runs hooks of Claude Code; those of cowfs keep still when Cursor runs them, "
    "so install these for Cursor.",
)


def settings(where: Where) -> list[Settings]:
    """The file."""
    directory = where.home if where.scope == USER else where.project
    entries = tuple(Entry(("hooks", name), _handler(where, name)) for name in EVENTS)
    path = os.path.join(directory, ".cursor", "hooks.json")
    return [Settings(path, entries, (Default(("version",), 1, ours=True),), notes=_NOTES)]


def _handler(where: Where, name: str) -> dict[str, object]:
    line = shlex.join([*where.command, "hook", "cursor", name])
    handler: dict[str, object] = {"command": line, "timeout": _TIMEOUT}
    return {**handler, "matcher": _TOOLS} if "ToolUse" in name else handler


def is_ours(element: object) -> bool:
    """Whether a handler starts `cowfs hook cursor`."""
    return runs(element, "cursor")
