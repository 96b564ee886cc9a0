"""What an adapter for an agent has to be able to do.

Files of a conversation have names: "main" is the transcript itself; others are called by their path
beside it, such as "subagents/agent-1.jsonl". Paths are text, bytes that are not UTF-8 are lone
surrogates.

Threading: adapters have no state; those methods that read files say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

MAIN = "main"
START = "start"
"""As a leaf: before the first entry."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file that belongs to a conversation. kind: `lines` if it only grows, by whole lines;
    `whole` if it may be replaced (cowfs/format/sessions.py)."""

    name: str
    path: str
    kind: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user asked. prompt_id: the agent's name for it, "". time: ISO 8601, "" if unknown.
    leaf: the agent's name for the last entry before the prompt, START at the beginning, "" if
    unknown."""

    prompt: str
    prompt_id: str = ""
    time: str = ""
    leaf: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a transcript says. turns: of the user only, as far as they are still part of it, oldest
    first. last_answer: the agent's last text. leaf: its name for the last entry of the file, START
    when there is none, "" if unknown. cwd: where it began. version: of the program."""

    title: str = ""
    turns: tuple[Turn, ...] = ()
    last_answer: str = ""
    leaf: str = ""
    cwd: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a conversation that can be resumed. files: path to bytes, to be made with mode 0600
    where nothing is yet. session: its id. command: what goes on with it, to be run in `cwd`.
    before: commands that must be run first, in order. notes: what a person should know."""

    session: str
    files: Mapping[str, bytes]
    command: tuple[str, ...]
    cwd: str
    before: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = field(default=())


class NotCopyableError(Exception):
    """There is no copy that could be resumed; the text says why."""


class Agent(Protocol):
    """An adapter. name: as on the command line. title: as people call the agent."""

    name: str
    title: str

    def sources(self, transcript: str) -> list[Source]:
        """The files of a conversation that are there now. Looks into directories."""
        ...

    def read(self, files: Mapping[str, bytes]) -> Conversation:
        """What the files (name to bytes) say. Never fails: what makes no sense is left out."""
        ...

    def complete(self, files: Mapping[str, bytes], last_answer: str) -> bool:
        """Whether the files hold the answer that the agent says it ended its turn with; to be asked
        again, for agents write their files later than they run hooks. Of the main file its end is
        enough. True when that cannot be told. Never fails."""
        ...

    def copy(
        self, files: Mapping[str, bytes], *, transcript: str, cwd: str, session: str, leaf: str = ""
    ) -> Copy:
        """A resumable copy of what the files (name to bytes) hold, up to and with the entry `leaf`
        if that is given. transcript: where the original lies. cwd: where it is to go on, "" for
        where it was. session: id of the original. Looks where names lead to, changes nothing.
        Raises NotCopyableError."""
        ...

    def resume_command(self, session: str, cwd: str) -> tuple[str, ...]:
        """The command that goes on with a session itself, to be run in `cwd`; () if there is
        none."""
        ...


@runtime_checkable
class Rewinding(Protocol):
    """An adapter for an agent whose user can go back in the conversation, with no trace of that in
    the file before the next prompt's line, which is not there when the prompt's hook runs."""

    def settled(self, before: bytes, after: bytes, prompt_id: str) -> str:
        """The leaf that a prompt really follows, if that is not the last entry that was there at
        its checkpoint; "" if it is, or if that cannot be told. It may be in `after`: an entry of
        the turn before, written late. before: the main file then, or its end. after: what was added
        since. Never fails."""
        ...
