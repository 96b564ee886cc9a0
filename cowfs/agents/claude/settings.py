"""What comes into the settings of Claude Code: a hook for each event that cowfs wants to hear of.

Handlers are in exec form (`command` and `args`, without a shell), which Claude Code has since
2.1.139; all these events are older than that. One that Claude Code did not know would open a dialog
when it starts.

Threading: pure functions.
"""

from __future__ import annotations

import os
from typing import Any

from cowfs.agents.claude.hooks import TOOLS
from cowfs.agents.settings import PROJECT, Default, Entry, Settings, Where, runs

_TOOLS = "|".join(TOOLS)
EVENTS = {
    "SessionStart": ("", 10),
    "UserPromptSubmit": ("", 15),
    "PreToolUse": (_TOOLS, 10),
    "PostToolUse": (_TOOLS, 10),
    "PostToolUseFailure": (_TOOLS, 10),
    "SubagentStart": ("", 10),
    "SubagentStop": ("", 10),
    "PreCompact": ("", 10),
    "Stop": ("", 10),
    "StopFailure": ("", 10),
    "SessionEnd": ("", 5),
}
"""Event to (matcher of the tools, after how many seconds the agent ends the hook). Without a
timeout of its own a hook at the end of a session would have 1.5 s."""


def group(name: str, command: tuple[str, ...]) -> dict[str, Any]:
    """What the list of an event gets."""
    matcher, timeout = EVENTS[name]
    program, *before = command
    handler = {
        "type": "command",
        "command": program,
        "args": [*before, "hook", "claude", name],
        "timeout": timeout,
    }
    return {**({"matcher": matcher} if matcher else {}), "hooks": [handler]}


def settings(where: Where) -> list[Settings]:
    """The one file."""
    if where.scope == PROJECT:
        top = os.path.join(where.project, ".claude")
    else:
        top = where.environment.get("CLAUDE_CONFIG_DIR") or os.path.join(where.home, ".claude")
    line = {
        "type": "command",
        "command": " ".join([*map(_quoted, where.command), "statusline"]),
        "padding": 0,
        "refreshInterval": 5,
    }
    return [
        Settings(
            os.path.join(top, "settings.json"),
            tuple(Entry(("hooks", name), group(name, where.command)) for name in EVENTS),
            (Default(("statusLine",), line, ours=True),) if where.statusline else (),
            notes=("Claude Code 2.1.139 or newer is needed; it takes them at its next start.",),
        )
    ]


def _quoted(word: str) -> str:
    """A word for a shell."""
    if word and all(char.isalnum() or char in "/._-+" for char in word):
        return word
    return "'" + word.replace("'", "'\\''") + "'"


def is_ours(element: object) -> bool:
    """Whether a handler, or a group of handlers, is cowfs'; or its status line."""
    if not isinstance(element, dict):
        return False
    handlers = element.get("hooks")
    if isinstance(handlers, list):
        return bool(handlers) and all(runs(handler, "claude") for handler in handlers)
    return runs(element, "claude")
