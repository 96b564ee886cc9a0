"""The hooks of Gemini CLI: in `settings.json` of the user, or of a project.

Threading: pure functions.
"""

from __future__ import annotations

import os
import shlex

from cowfs.agents.gemini.hooks import EVENTS, TOOLS
from cowfs.agents.settings import USER, Entry, Settings, Where, runs

_TIMEOUT = 30_000
"""Milliseconds."""
_TOOLS = "^(" + "|".join(TOOLS) + ")$"
_NOTES = ("Gemini CLI leaves a project's settings out in a directory that it does not trust.",)


def settings(where: Where) -> list[Settings]:
    """The file."""
    home = where.environment.get("GEMINI_CLI_HOME") or where.home
    directory = home if where.scope == USER else where.project
    entries = tuple(Entry(("hooks", name), _group(where, name)) for name in EVENTS)
    path = os.path.join(directory, ".gemini", "settings.json")
    notes = () if where.scope == USER else _NOTES
    return [Settings(path, entries, comments=True, notes=notes)]


def _group(where: Where, name: str) -> dict[str, object]:
    line = shlex.join([*where.command, "hook", "gemini", name])
    handler = {"type": "command", "name": "cowfs", "command": line, "timeout": _TIMEOUT}
    if name in ("BeforeTool", "AfterTool"):
        return {"matcher": _TOOLS, "hooks": [handler]}
    return {"hooks": [handler]}


def is_ours(element: object) -> bool:
    """Whether a handler, or a group of handlers, starts `cowfs hook gemini`."""
    handlers = element.get("hooks") if isinstance(element, dict) else None
    if isinstance(handlers, list):
        return bool(handlers) and all(runs(handler, "gemini") for handler in handlers)
    return runs(element, "gemini")
