"""What `cowfs hooks install` writes into the configuration of an agent.

Each agent that has hooks has a module `settings` with `settings(where)`, the files and what
comes into them, and `is_ours(element)`, which recognises that. How a file is changed so that all
else in it stays as it is, is no matter of the agent (cowfs/hooks/).

Threading: immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

USER = "user"
"""For all that a user does with the agent."""
PROJECT = "project"
"""For one directory, in a file inside it."""


@dataclass(frozen=True, slots=True)
class Where:
    """Whose configuration. scope: `USER` or `PROJECT`. home: the home directory. project: the
    directory of the project. environment: of who asks. command: the words that start cowfs.
    statusline: whether the agent shall show cowfs' status line."""

    scope: str
    home: str
    project: str
    environment: Mapping[str, str]
    command: tuple[str, ...] = ("cowfs",)
    statusline: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """An element of a list in a JSON document. at: the keys that lead to the list."""

    at: tuple[str, ...]
    value: Any


@dataclass(frozen=True, slots=True)
class Default:
    """A value that a JSON document gets where it has none. at: the keys that lead to it. ours: it
    is taken out again with the entries, if it still has that value."""

    at: tuple[str, ...]
    value: Any
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """A file. path: absolute. entries, defaults: for a JSON document; comments: whether it may
    have some, and trailing commas. text: the whole file instead, when nobody else has anything in
    it. notes: what the user should know or do, in sentences."""

    path: str
    entries: tuple[Entry, ...] = ()
    defaults: tuple[Default, ...] = ()
    comments: bool = False
    text: str | None = None
    notes: tuple[str, ...] = ()


def runs(handler: object, agent: str) -> bool:
    """Whether a handler as most agents have it ({"command": ..., "args": [...]}) starts
    `cowfs hook AGENT`, in whatever way: as a list of arguments, or as a line for a shell."""
    if not isinstance(handler, dict):
        return False
    command, more = handler.get("command"), handler.get("args")
    if not isinstance(command, str):
        return False
    words = [command] if isinstance(more, list) else command.replace("'", "").split()
    words += [word for word in more if isinstance(word, str)] if isinstance(more, list) else []
    for at, word in enumerate(words):
        program = word.rpartition("/")[2].strip('"')
        if program == "cowfs" and words[at + 1 : at + 3] == ["hook", agent]:
            return True
    return False
