"""Going on with a session that was broken off: what there is of it, and what has become of it.

Threading: pure functions on a reader of the calling thread, and on what the machine shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cowfs.errors import CowfsError
from cowfs.format.records import CheckpointRecord
from cowfs.format.sessions import (
    ContextRecord,
    ListeningPort,
    RunningProcess,
    SessionRecord,
)
from cowfs.service.diff import Change, diff
from cowfs.service.selectors import Point
from cowfs.service.sessions import reading
from cowfs.service.sessions.listing import checkpoints_of
from cowfs.service.sessions.originals import main_of
from cowfs.service.sessions.surroundings import ports, processes
from cowfs.service.sessions.surroundings.environment import of_agents
from cowfs.service.workspace import ReadOnly
from cowfs.store.snapshot import Reader

_OF_NOW = frozenset(
    [
        *("COLORTERM", "COLUMNS", "LINES", "LS_COLORS", "TERM", "TERM_PROGRAM", "TTY"),
        *("TERM_PROGRAM_VERSION", "STY", "TMUX", "TMUX_PANE", "WINDOWID", "XAUTHORITY"),
        *("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"),
        *("XDG_SEAT", "XDG_SESSION_CLASS", "XDG_SESSION_ID", "XDG_SESSION_TYPE", "XDG_VTNR"),
        *("SSH_AUTH_SOCK", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY"),
        *("OLDPWD", "PWD", "SHLVL", "_"),
    ]
)
"""Of the terminal and the login, which are not those of then."""


@dataclass(frozen=True, slots=True)
class Last:
    """The newest checkpoint of a session. context: what it keeps besides the files; around: the
    newest context that tells of the environment and the processes. changes: what is different now;
    None when that cannot be told. said_since: whether the conversation has gone on since."""

    point: CheckpointRecord
    context: ContextRecord | None
    around: ContextRecord | None
    changes: list[Change] | None
    said_since: bool


def last_of(workspace: ReadOnly, session: SessionRecord) -> Last | None:
    """None for a session that has no checkpoint. Raises DamagedRecordError."""
    reader = workspace.reader
    last: CheckpointRecord | None = None
    found = around = None
    for point in checkpoints_of(reader, session.id):
        context = reading.context(reader, point.id)
        if last is None:
            last, found = point, context
        if context is not None and (context.environment or context.processes):
            around = context
            break
    if last is None:
        return None
    point_then = Point(last.id, reader.lineage(last.epoch), last)
    try:
        changes = diff(workspace, point_then, workspace.point("@"))
    except CowfsError:
        changes = None
    return Last(last, found, around, changes, _said_since(reader, session, found))


def _said_since(reader: Reader, session: SessionRecord, found: ContextRecord | None) -> bool:
    """Whether the main file is longer now than at a checkpoint, as far as that can be seen."""
    stored = main_of(reader, session)
    if stored is None:
        return False
    number, record = stored
    marks = {mark.transcript: mark.length for mark in found.marks} if found is not None else {}
    try:
        size = os.stat(record.path).st_size
    except OSError:
        size = record.length
    return max(size, record.length) > marks.get(number, 0)


def environment(saved: Iterable[tuple[str, str]], present: Mapping[str, str]) -> dict[str, str]:
    """The environment that an agent shall go on with: the present one, with the saved values over
    it, but for what belongs to the terminal or to the agent that ran then."""
    found = {name: value for name, value in present.items() if not of_agents(name)}
    found |= {name: value for name, value in saved if name not in _OF_NOW and not of_agents(name)}
    return found


def not_set(hidden: Iterable[str], present: Mapping[str, str]) -> list[str]:
    """Names of variables that were left out as secrets, and that are not there now."""
    return [
        name
        for name in hidden
        if name not in present and name not in _OF_NOW and not of_agents(name)
    ]


def gone_processes(found: ContextRecord | None) -> list[RunningProcess]:
    """Those that ran at a checkpoint and do not any more."""
    if found is None:
        return []
    return [process for process in found.processes if not processes.is_running(process)]


def gone_ports(found: ContextRecord | None) -> list[ListeningPort]:
    """Those on which something waited at a checkpoint, and nothing does now."""
    if found is None or not found.ports:
        return []
    now = ports.now()
    return [port for port in found.ports if (port.protocol, port.address, port.port) not in now]
