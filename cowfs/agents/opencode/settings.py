"""The plugin of OpenCode: `cowfs.js` among the user's plugins, or those of a project.

Threading: pure functions; reads the plugin's text, which is beside this module.
"""

from __future__ import annotations

import json
import os
from importlib import resources

from cowfs.agents.settings import USER, Settings, Where

_COMMAND = 'const COMMAND = ["cowfs"]'
"""The line of the plugin that says how cowfs is started."""
_BEGINNING = "// The plugin of cowfs for OpenCode"


def settings(where: Where) -> list[Settings]:
    """The file."""
    config = where.environment.get("XDG_CONFIG_HOME") or os.path.join(where.home, ".config")
    user = os.path.join(config, "opencode")
    directory = user if where.scope == USER else os.path.join(where.project, ".opencode")
    return [Settings(os.path.join(directory, "plugins", "cowfs.js"), text=plugin(where.command))]


def plugin(command: tuple[str, ...]) -> str:
    """The text of the plugin. command: the words that start cowfs."""
    found = resources.files(__package__).joinpath("cowfs.js").read_text(encoding="utf-8")
    return found.replace(_COMMAND, f"const COMMAND = {json.dumps(list(command))}", 1)


def is_ours(element: object) -> bool:
    """Whether the text of a file is that of the plugin, of whatever version."""
    return isinstance(element, str) and element.startswith(_BEGINNING)
