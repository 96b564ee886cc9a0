"""What cowfs knows of each agent: where its conversation lies, how to read it, how to make a copy
of it that can be resumed, what its hooks say, and the command that goes on.

`get` finds an adapter (base.py) by name. Each agent is a package of its own: `hooks` there is what
a hook needs, and imports little; `adapter` is the rest.

Threading: adapters have no state.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
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
