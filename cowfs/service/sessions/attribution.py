"""Telling the audit log which processes are sessions' and which commands of tools are under way.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from cowfs.agents import events
from cowfs.format.sessions import ACTIVE, SessionRecord
from cowfs.service.engine import Engine
from cowfs.service.sessions.listing import all_sessions
from cowfs.service.sessions.liveness import is_running
from cowfs.store.env import LmdbError
from cowfs.store.snapshot import Reader
from cowfs.volume.audit_sessions import Call

if TYPE_CHECKING:
    from cowfs.service.sessions.recording import Event

log = logging.getLogger(__name__)

SHELLS = frozenset(
    {"bash", "shell", "run_shell_command", "exec_command", "local_shell", "terminal", "execute"}
)
"""Tools that run commands, as agents call them, in lower case."""
_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_CALLS = 100
_ENDS = {events.PROMPT, events.TURN_END, events.SESSION_END}
"""At which no call of the agent itself is under way any more; one that was broken off never says
that it ended."""


class Attribution:
    """What the audit log of one daemon knows of sessions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._agents: dict[tuple[int, int], str] = {}
        self._calls: dict[str, list[Call]] = {}

    def begin(self) -> None:
        """Take up the sessions that were going on when this daemon was started, as far as the store
        can be read."""
        with self._lock:
            try:
                with Reader(self._engine.volume.store) as reader:
                    for record in all_sessions(reader):
                        if not record.parent and record.state == ACTIVE and is_running(record):
                            self._follow(record)
            except LmdbError as error:
                log.warning("sessions that were going on are not known: %s", error)
            if self._agents:
                self._tell()

    def see(self, event: Event, main: SessionRecord) -> None:
        """Something has happened in a session, or in one of its sub-agents."""
        with self._lock:
            before = dict(self._agents), {name: list(c) for name, c in self._calls.items()}
            self._follow(main)
            self._count(event, main.id)
            if before != (self._agents, self._calls):
                self._tell()

    def _follow(self, main: SessionRecord) -> None:
        """Its process is the session's from now on, and that of no other one."""
        process = main.pid, main.born
        self._agents = {p: s for p, s in self._agents.items() if s != main.id and p != process}
        if main.state == ACTIVE and main.pid and main.born:
            self._agents[process] = main.id
        gone = self._calls.keys() - set(self._agents.values())
        for session in gone:
            del self._calls[session]

    def _count(self, event: Event, session: str) -> None:
        name = f"{session}/{event.subagent}" if event.subagent else session
        calls = self._calls.get(session, [])
        in_shell = event.tool.lower() in SHELLS
        if event.event == events.TOOL_START and (in_shell or event.tool_path):
            since = time.clock_gettime_ns(time.CLOCK_BOOTTIME) * _TICKS // 1_000_000_000
            command = event.tool_text or event.tool if in_shell else ""
            call = Call(event.tool_id or event.tool, name, command, since)
            calls = [*calls, call][-_MOST_CALLS:]
        elif event.event == events.TOOL_END:
            wanted = event.tool_id or event.tool
            calls = [call for call in calls if (call.id, call.session) != (wanted, name)]
        elif event.event == events.SESSION_END and not event.subagent:
            calls = []
        elif event.event in _ENDS or event.event == events.SUBAGENT_END:
            calls = [call for call in calls if call.session != name]
        if calls:
            self._calls[session] = calls
        else:
            self._calls.pop(session, None)

    def _tell(self) -> None:
        agents = dict(self._agents)
        calls = {session: tuple(found) for session, found in self._calls.items()}
        processes = self._engine.volume.audit.processes
        self._engine.call(lambda: processes.follow(agents, calls))
