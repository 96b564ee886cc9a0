"""What is done at each event of a session: its record, its conversation, a checkpoint.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from cowfs import agents
from cowfs.agents import events
from cowfs.errors import UsageError
from cowfs.format import records
from cowfs.format.sessions import (
    ACTIVE,
    ENDED,
    ContextRecord,
    SessionRecord,
    ToolCall,
    is_possible_id,
    pack_context,
)
from cowfs.service.automatic import unchanged
from cowfs.service.checkpoint import checkpoint
from cowfs.service.engine import Engine
from cowfs.service.removing import Operation
from cowfs.service.sessions import liveness
from cowfs.service.sessions.registry import Registry, changed
from cowfs.service.sessions.surroundings import Surroundings, look_around
from cowfs.service.sessions.transcripts import Captured
from cowfs.volume.history import Author

_PROMPT_LENGTH = 4000
_TEXT_LENGTH = 500
KINDS = {
    events.PROMPT: "prompt",
    events.TOOL_START: "tool",
    events.SUBAGENT_START: "agent",
    events.SUBAGENT_END: "agent",
    events.COMPACTION: "turn",
    events.TURN_END: "turn",
    events.SESSION_END: "turn",
}
"""The kind of the checkpoint that is made at an event. Only at a prompt is one made when nothing
has changed."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of `session.event` (docs/protocol.md). subagent: id of the sub-agent that it
    is about or comes from, "" for the agent itself. pid: the agent's process. source, reason: why a
    session began or ended, in the agent's words. background: tasks that go on."""

    agent: str
    session: str
    event: str
    subagent: str = ""
    subagent_kind: str = ""
    cwd: str = ""
    transcript: str = ""
    pid: int = 0
    prompt: str = ""
    prompt_id: str = ""
    tool_id: str = ""
    tool: str = ""
    tool_text: str = ""
    last_answer: str = ""
    background: int = 0
    source: str = ""
    reason: str = ""
    title: str = ""
    version: str = ""
    environment: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done. made: whether the checkpoint was made now."""

    session: SessionRecord
    checkpoint: records.CheckpointRecord | None = None
    made: bool = False


def parse(params: Mapping[str, Any]) -> Event:
    """Raises UsageError."""
    try:
        event = msgspec.convert(params, Event)
    except msgspec.ValidationError as error:
        raise UsageError(detail=f"this is no event of a session: {error}") from None
    name = f"{event.session}/{event.subagent}" if event.subagent else event.session
    if event.event not in events.EVENTS or not event.agent.isidentifier():
        raise UsageError(detail=f"there is no event {event.event!r} of {event.agent!r}")
    if not is_possible_id(name) or "/" in event.session:
        raise UsageError(detail=f"{name!r} cannot be the id of a session")
    return event


class Recorder:
    """Keeps what agents report, in one daemon."""

    def __init__(self, engine: Engine, operation: Operation, registry: Registry) -> None:
        self._engine = engine
        self._operation = operation
        self.registry = registry

    def record(self, author: Author, event: Event) -> Outcome:
        """Do what an event asks for; durable when a checkpoint was made. Raises CowfsError."""
        with self.registry.lock:
            session, captured = self._follow(author, event)
        kind = KINDS.get(event.event)
        if kind is None:
            return Outcome(session)
        around = look_around(self._engine, event.pid, event.environment)
        context = _context(session, event, captured, around)
        with self._operation:
            last = unchanged(self._engine) if event.event != events.PROMPT else None
            made = last or checkpoint(
                self._engine,
                author,
                message=_message(event),
                kind=kind,
                session=session.id,
                context=pack_context(context),
            )
        return Outcome(session, made, last is None)

    def _follow(self, author: Author, event: Event) -> tuple[SessionRecord, Captured]:
        """Bring the session's record and its conversation up to date."""
        moment = time.time_ns()
        main = self._main(author, event, moment)
        path = event.transcript or os.fsdecode(main.transcript)
        sources = agents.get(main.agent).sources(path) if path else []
        captured = self.registry.transcripts.capture(main, sources)
        main = self.registry.put(changed(main, files=captured.numbers))
        if not event.subagent:
            return main, captured
        return self._subagent(main, event, moment), captured

    def _main(self, author: Author, event: Event, moment: int) -> SessionRecord:
        known = self.registry.get(event.session)
        if known is None:
            known = SessionRecord(event.session, event.agent, started=moment)
        record = changed(
            known,
            last=moment,
            uid=author.uid,
            user=author.user,
            cwd=os.fsencode(event.cwd) if not event.subagent else b"",
            transcript=os.fsencode(event.transcript),
            title=event.title,
            version=event.version,
        )
        if event.pid and (event.pid, liveness.boot_id()) != (known.pid, known.boot):
            record = changed(record, pid=event.pid, born=liveness.born(event.pid))
        record = changed(record, boot=liveness.boot_id())
        if event.subagent:
            return record
        if event.event == events.PROMPT:
            prompt = event.prompt[:_PROMPT_LENGTH]
            record = changed(record, prompt=prompt, prompt_id=event.prompt_id)
        ended = event.event == events.SESSION_END
        return msgspec.structs.replace(
            record,
            state=ENDED if ended else ACTIVE,
            ended=moment if ended else 0,
            reason=event.reason if ended else "",
        )

    def _subagent(self, main: SessionRecord, event: Event, moment: int) -> SessionRecord:
        name = f"{event.session}/{event.subagent}"
        known = self.registry.get(name)
        if known is None:
            known = SessionRecord(name, event.agent, started=moment, parent=event.session)
        ended = event.event == events.SUBAGENT_END
        record = changed(
            known,
            last=moment,
            uid=main.uid,
            user=main.user,
            kind=event.subagent_kind,
            cwd=os.fsencode(event.cwd),
        )
        return self.registry.put(
            msgspec.structs.replace(
                record, state=ENDED if ended else ACTIVE, ended=moment if ended else 0
            )
        )


def _message(event: Event) -> str:
    text = {
        events.PROMPT: event.prompt,
        events.TOOL_START: f"before {event.tool}: {event.tool_text}",
        events.SUBAGENT_START: f"before {event.subagent_kind or 'sub-agent'} {event.subagent}",
        events.SUBAGENT_END: f"after {event.subagent_kind or 'sub-agent'} {event.subagent}",
        events.COMPACTION: "before the conversation is made shorter",
        events.TURN_END: "end of the turn",
        events.SESSION_END: "end of the session",
    }[event.event]
    return text[:_TEXT_LENGTH]


def _context(
    session: SessionRecord, event: Event, captured: Captured, around: Surroundings
) -> ContextRecord:
    return ContextRecord(
        session=session.id,
        event=event.event,
        prompt=event.prompt[:_PROMPT_LENGTH] or session.prompt,
        prompt_id=event.prompt_id or session.prompt_id,
        tool=ToolCall(event.tool_id, event.tool, event.tool_text[:_TEXT_LENGTH]),
        cwd=os.fsencode(event.cwd),
        marks=captured.marks,
        background=event.background,
        environment=around.environment,
        hidden=around.hidden,
        processes=around.processes,
        files=around.files,
        ports=around.ports,
        locks=around.locks,
        missing=(*captured.missing, *around.missing),
    )
