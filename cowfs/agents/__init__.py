"""What cowfs knows of each agent: where its conversation lies, how to read it, how to make a copy
of it that can be resumed, what its hooks say, and the command that goes on.

`get` finds an adapter (base.py) by name. Each agent is a package of its own: `hooks` there is what
a hook needs, and imports little; `adapter` is the rest.

Threading: adapters have no state.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cowfs.agents.base import Agent

NAMES = ("claude", "codex", "cursor", "gemini", "opencode")
"""Those with an adapter of their own. Any other name is served by the generic one."""


def get(name: str) -> Agent:
    """The adapter of an agent; the generic one for a name that is not known."""
    from importlib import import_module

    package = name if name in NAMES else "generic"
    module = import_module(f"cowfs.agents.{package}.adapter")
    agent: Agent = module.adapter(name)
    return agent


def hooks(name: str) -> ModuleType:
    """The module `hooks` of an agent; the generic one for a name that is not known. It has
    `event(name, said, environment)`, `directories(said, environment)` and
    `answer(name, said, context, notice)` (cowfs/agents/claude/hooks.py says what they are)."""
    return _module(name if name in NAMES else "generic", "hooks")


def settings_of(name: str) -> ModuleType | None:
    """The module `settings` of an agent (cowfs/agents/settings.py); None for one that cannot be
    told of hooks by a file."""
    if name not in NAMES:
        return None
    try:
        return _module(name, "settings")
    except ModuleNotFoundError as error:
        if error.name != f"cowfs.agents.{name}.settings":
            raise
        return None


def _module(package: str, name: str) -> ModuleType:
    """Imported without `importlib`, which costs a hook more than its work."""
    import sys

    full = f"cowfs.agents.{package}.{name}"
    __import__(full)
    return sys.modules[full]
