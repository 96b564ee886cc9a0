"""The hooks of Codex CLI: `hooks.json` beside its configuration, or in `.codex` of a project.

Threading: pure functions.
"""

from __future__ import annotations

import os
import shlex

from cowfs.agents.codex.hooks import EVENTS, TOOLS
from cowfs.agents.settings import USER, Entry, Settings, Where, runs

_TIMEOUT = 30
"""Seconds. Codex gives a hook of `SessionEnd` three at most."""
_TOOLS = "^(" + "|".join(TOOLS) + ")$"
_NOTES = (
    "Codex runs a hook only after you have approved it, and does not tell when it runs none: "
    "start codex, type /hooks and trust those of cowfs.",
    "In a directory that Codex does not trust it leaves a project's hooks out.",
)


def settings(where: Where) -> list[Settings]:
    """The file. The commands in it never change, for Codex would have them approved again."""
    home = where.environment.get("CODEX_HOME") or os.path.join(where.home, ".codex")
    directory = home if where.scope == USER else os.path.join(where.project, ".codex")
    notes = _NOTES[: 1 if where.scope == USER else 2]
    entries = tuple(Entry(("hooks", name), _group(where, name)) for name in EVENTS)
    return [Settings(os.path.join(directory, "hooks.json"), entries, notes=notes)]


def _group(where: Where, name: str) -> dict[str, object]:
    line = shlex.join([*where.command, "hook", "codex", name])
    handler = {"type": "command", "command": line, "timeout": _TIMEOUT}
    if name in ("PreToolUse", "PostToolUse"):
        return {"matcher": _TOOLS, "hooks": [handler]}
    return {"hooks": [handler]}


def is_ours(element: object) -> bool:
    """Whether a handler, or a group of handlers, starts `cowfs hook codex`."""
    handlers = element.get("hooks") if isinstance(element, dict) else None
    if isinstance(handlers, list):
        return bool(handlers) and all(runs(handler, "codex") for handler in handlers)
    return runs(element, "codex")
