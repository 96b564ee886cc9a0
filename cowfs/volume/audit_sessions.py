"""Which session of an agent a process belongs to, and which call of a tool started it.

A process belongs to a session if it or one that it descends from is the session's process, or if
its environment names the session: so what a tool puts into the background, and is left without its
parents, still does.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cowfs.format.audit import ProcessRecord

_ENVIRONMENT_BYTES = 1 << 17
_COMPARED = 500
"""Characters of a command by which it is found in a command line, of which the end may be cut."""
_SHORTEST = 4
_UNMISTAKABLE = 8
"""Characters of an id from which on it is no other variable's value by chance."""
_QUOTES = str.maketrans("", "", "'\"\\")
"""Agents quote a command once more, each in its own way."""

Agents = Mapping[tuple[int, int], str]
"""(pid, start in clock ticks) of the processes of sessions that are going on, to their ids."""


class Call(NamedTuple):
    """A call of a tool that is under way. session: of a sub-agent that one's. command: what a shell
    is to run; "" if the agent's own process does the work, such as an edit. since: clock ticks
    after the machine was started."""

    id: str
    session: str
    command: str
    since: int


class Belonging(NamedTuple):
    """session, tool: ids, "" for none. outside: none, though there are sessions."""

    session: str = ""
    tool: str = ""
    outside: bool = False


def own_calls(calls: Mapping[str, Sequence[Call]]) -> set[Call]:
    """Those that agents' own processes do."""
    return {call for some in calls.values() for call in some if not call.command}


class Sessions:
    """The sessions that are going on. calls: by session, with those of its sub-agents."""

    def __init__(self, is_there: Callable[[int, int], bool]) -> None:
        """is_there: whether a process (pid, start) is."""
        self._is_there = is_there
        self.agents: Agents = {}
        self.calls: Mapping[str, Sequence[Call]] = {}

    def belonging(
        self, pid: int, start: int, command: bytes, above: ProcessRecord | None
    ) -> Belonging:
        """Of a process that was just met. above: the one that started it."""
        if not self.agents:
            return Belonging()
        session = self.agents.get((pid, start), "")
        if session:
            own = [call for call in self.calls.get(session, ()) if not call.command]
            return Belonging(own[0].session, own[0].id) if len(own) == 1 else Belonging(session)
        if above is not None and above.session:
            if any(above.pid == agent for agent, _ in self.agents):
                session = above.session.partition("/")[0]  # what the agent itself does is no matter
            elif above.tool:
                return Belonging(above.session, above.tool)
            else:
                session = above.session
        else:
            session = self._named(pid)
            if not session:
                return Belonging(outside=any(self._is_there(*agent) for agent in self.agents))
        call = self._call(session, start, command)
        return Belonging(call.session, call.id) if call is not None else Belonging(session)

    def _named(self, pid: int) -> str:
        """The session that the environment of a process names, "" for none."""
        try:
            fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            environment = os.read(fd, _ENVIRONMENT_BYTES) + b"\0"
        except OSError:
            return ""
        finally:
            os.close(fd)
        for session in self.agents.values():
            if len(session) >= _UNMISTAKABLE and b"=%s\0" % session.encode() in environment:
                return session
        return ""

    def _call(self, session: str, start: int, command: bytes) -> Call | None:
        """The call that a process is of: the only one that is under way, or that whose command is
        in its command line."""
        calls = self.calls.get(session.partition("/")[0], ())
        calls = [call for call in calls if call.command and call.since <= start]
        if len(calls) < 2:
            return calls[0] if calls else None
        line = _plain(command.replace(b"\0", b" ").decode("utf-8", "replace"))
        said = [call for call in calls if _is_in(_plain(call.command), line)]
        longest = max((len(call.command) for call in said), default=0)
        said = [call for call in said if len(call.command) == longest]  # the others are parts of it
        return said[0] if len(said) == 1 else None


def _plain(text: str) -> str:
    return text.translate(_QUOTES)


def _is_in(command: str, line: str) -> bool:
    return len(command) >= _SHORTEST and command[:_COMPARED] in line
