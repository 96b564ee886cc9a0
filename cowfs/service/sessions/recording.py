"""What is done at each event of a session: its record, its conversation, a checkpoint.

A hook waits for this, and the agent for the hook: nothing here may wait for long. An operation that
is under way is waited for as long as the event says; then there is no checkpoint.

Threading: for the threads that an `Engine` is for. Events of one session may come at the same time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
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
    storable,
)
from cowfs.service import config
from cowfs.service.automatic import unchanged
from cowfs.service.checkpoint import checkpoint
from cowfs.service.engine import Engine, commit
from cowfs.service.sessions import liveness, marks
from cowfs.service.sessions.attribution import Attribution
from cowfs.service.sessions.interruptions import interrupted
from cowfs.service.sessions.marks import Call, Changes, Marks
from cowfs.service.sessions.registry import Registry, changed
from cowfs.service.sessions.repeats import Repeats
from cowfs.service.sessions.surroundings import Surroundings, look_around
from cowfs.service.sessions.transcripts import Captured
from cowfs.service.sessions.turns import Turns, about, wait_for_answer
from cowfs.volume.audit_redaction import concealed
from cowfs.volume.history import Author

_PROMPT_LENGTH = 4000
_TEXT_LENGTH = 500
_LONGEST_WAIT = 60.0
_LARGEST_PID = 1 << 22
"""Linux has no larger one (proc_sys_kernel(5), pid_max)."""
_PATHS = ("cwd", "transcript", "subagent_transcript", "tool_path")
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


_BEFORE = (events.PROMPT, events.TOOL_START, events.SUBAGENT_START, events.COMPACTION)
"""A checkpoint of the state before them is wrong as soon as the agent goes on."""


class _TooLateError(Exception):
    """The agent has gone on."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of `session.event` (docs/protocol.md). subagent: id of the sub-agent that it
    is about or comes from, "" for the agent itself. pid: the agent's process. source, reason: why a
    session began or ended, in the agent's words. tool_path: the one file that the tool is meant to
    change. background: tasks that go on. wait: for how many seconds the agent does not go on:
    so long another operation may be waited for."""

    agent: str
    session: str
    event: str
    subagent: str = ""
    subagent_kind: str = ""
    subagent_transcript: str = ""
    cwd: str = ""
    transcript: str = ""
    pid: int = 0
    prompt: str = ""
    prompt_id: str = ""
    tool_id: str = ""
    tool: str = ""
    tool_text: str = ""
    tool_path: str = ""
    last_answer: str = ""
    background: int = 0
    source: str = ""
    reason: str = ""
    title: str = ""
    version: str = ""
    environment: dict[str, str] = {}
    wait: float = 5.0

    @property
    def call(self) -> Call:
        """The tool call that it is about."""
        named = self.tool_id or f"{self.tool} {self.tool_text}"
        return Call(self.session, self.subagent, named)

    @property
    def identity(self) -> tuple[Hashable, bool]:
        """What is the same when it comes again, and whether that is an id of its own."""
        own = {
            events.PROMPT: self.prompt_id,
            events.TOOL_START: self.tool_id,
            events.TOOL_END: self.tool_id,
            events.SUBAGENT_START: self.subagent,
            events.SUBAGENT_END: self.subagent,
        }.get(self.event, "")
        if own:
            return (self.session, self.event, self.subagent, own, self.prompt_id), True
        said = (self.prompt_id, self.prompt, self.source, self.reason, self.last_answer)
        return (self.session, self.event, self.subagent, self.tool, self.tool_text, *said), False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done. made: whether the checkpoint was made now. repeated: the event came before.
    missed: why there is no checkpoint though there should be one. changes: what a tool call
    changed. interrupted: other sessions that were broken off, and nobody went on with."""

    session: SessionRecord
    checkpoint: records.CheckpointRecord | None = None
    made: bool = False
    repeated: bool = False
    missed: str = ""
    changes: Changes | None = None
    interrupted: tuple[SessionRecord, ...] = ()


def parse(params: Mapping[str, Any]) -> Event:
    """Raises UsageError."""
    try:
        event = msgspec.convert({n: _storable(n, v) for n, v in params.items()}, Event)
    except msgspec.ValidationError as error:
        raise UsageError(detail=f"this is no event of a session: {error}") from None
    name = f"{event.session}/{event.subagent}" if event.subagent else event.session
    if event.event not in events.EVENTS or not event.agent.isidentifier():
        raise UsageError(detail=f"there is no event {event.event!r} of {event.agent!r}")
    if not is_possible_id(name) or "/" in event.session + event.subagent:
        raise UsageError(detail=f"{name!r} cannot be the id of a session")
    if not 0 <= event.wait <= _LONGEST_WAIT:
        raise UsageError(detail=f"wait is a number of seconds, at most {_LONGEST_WAIT:.0f}")
    if not (0 <= event.pid <= _LARGEST_PID and 0 <= event.background <= _LARGEST_PID):
        raise UsageError(detail="pid and background are numbers of processes and tasks")
    return event


def _storable(name: str, value: Any) -> Any:
    """A parameter as a record can hold it. In a path lone surrogates stand for bytes; one that is
    none, or not absolute, is as if it was missing."""
    if isinstance(value, Mapping):
        return {_storable("", key): _storable("", inner) for key, inner in value.items()}
    if not isinstance(value, str):
        return value
    if name not in _PATHS:
        return storable(value)
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return ""
    return value if value.startswith("/") and "\0" not in value else ""


class Recorder:
    """Keeps what agents report, in one daemon."""

    def __init__(self, engine: Engine, operation: threading.RLock, registry: Registry) -> None:
        self._engine = engine
        self._operation = operation
        self.registry = registry
        self._marks = Marks()
        self._turns = Turns(engine, operation)
        self._repeats: Repeats[Outcome] = Repeats()
        self.attribution = Attribution(engine)

    def record(self, author: Author, event: Event) -> Outcome:
        """Do what an event asks for; durable when a checkpoint was made. Raises CowfsError."""
        key, lasting = event.identity
        until = time.monotonic() + event.wait
        before, again = self._repeats.enter(event.session, key, event.wait)
        if before is not None:
            if event.event == events.SUBAGENT_END:  # it has gone on meanwhile, and ended again
                with self.registry.lock:
                    self._follow(author, event)
            return replace(before, made=False, repeated=True)
        try:
            outcome = self._record(author, event, until, again=again)
        except BaseException:
            self._repeats.leave(event.session, key, None, lasting=lasting)
            raise
        done = None if outcome.missed else outcome
        self._repeats.leave(event.session, key, done, lasting=lasting)
        return replace(outcome, repeated=again)

    def _record(self, author: Author, event: Event, until: float, *, again: bool) -> Outcome:
        """until: when the hook gives up, by the monotonic clock. again: it is the event that came
        last, without an id that would tell it from another."""
        complete = True
        if event.event == events.TURN_END:
            complete = wait_for_answer(event.agent, event.transcript, event.last_answer)
            title, version = about(event.agent, event.transcript)
            event = msgspec.structs.replace(
                event, title=event.title or title, version=event.version or version
            )
        with self.registry.lock:
            session, captured = self._follow(author, event)
        self.attribution.see(event, self.registry.get(event.session) or session)
        if event.event == events.SESSION_START:
            return Outcome(session, interrupted=interrupted(self._engine, session))
        if event.event == events.TOOL_END:
            return Outcome(session, changes=self._changes(event))
        if event.event in (events.TURN_END, events.PROMPT) and not event.subagent:
            path = event.transcript or os.fsdecode(session.transcript)
            self._turns.settle(session.agent, session.id, path, captured.marks)
            self._marks.drop(session.id, "")
        elif event.event == events.SUBAGENT_END:
            self._marks.drop(event.session, event.subagent)
        policy = config.read(self._engine.volume.store.path).sessions
        wanted = policy.wants(KINDS[event.event], event.subagent, session.kind)
        always = event.event == events.PROMPT and not event.subagent and not again
        return self._keep(
            author,
            event,
            session,
            captured,
            complete=complete and captured.complete,
            wanted=wanted,
            always=always,
            until=until,
        )

    def _keep(
        self,
        author: Author,
        event: Event,
        session: SessionRecord,
        captured: Captured,
        *,
        complete: bool,
        wanted: bool,
        always: bool,
        until: float,
    ) -> Outcome:
        """Make the checkpoint. wanted: if anything has changed; always: also if not."""
        if not wanted and event.event != events.TOOL_START:
            commit(self._engine)
            return Outcome(session)
        if not self._operation.acquire(timeout=max(0.0, until - time.monotonic())):
            return Outcome(session, missed="another operation is under way")
        try:
            last = unchanged(self._engine) if not (always and wanted) else None
            if last is None and not wanted:
                return Outcome(session)
            made = last or self._checkpoint(author, event, session, captured, complete, until)
        except _TooLateError:
            return Outcome(session, missed="it took too long")
        finally:
            self._operation.release()
        if event.event == events.TOOL_START:
            self._marks.begin(event.call, made)
        elif event.event == events.PROMPT and last is None:
            self._turns.asked(session.id, event.prompt_id, made.id, captured.marks)
        return Outcome(session, made, last is None)

    def _checkpoint(
        self,
        author: Author,
        event: Event,
        session: SessionRecord,
        captured: Captured,
        complete: bool,
        until: float,
    ) -> records.CheckpointRecord:
        def still() -> None:
            if event.event in _BEFORE and time.monotonic() >= until:
                raise _TooLateError

        main = self.registry.get(event.session) or session
        around = look_around(
            self._engine,
            event.pid or main.pid,
            event.environment,
            thorough=event.event != events.TOOL_START,
            without=(author.pid,),
        )
        context = _context(session, event, captured, around, complete)
        return checkpoint(
            self._engine,
            author,
            message=_message(event),
            kind=KINDS[event.event],
            session=session.id,
            context=pack_context(context),
            still=still,
        )

    def _changes(self, event: Event) -> Changes | None:
        """What a tool call changed; None when its beginning is not known, or nobody wants to be
        told."""
        mark = self._marks.end(event.call)
        found = config.read(self._engine.volume.store.path)
        if mark is None or not found.sessions.report:
            return None
        top = self._engine.mountpoint().rstrip("/") + "/"
        named = event.tool_path.removeprefix(top) if event.tool_path.startswith(top) else ""
        return marks.since(self._engine, mark, os.fsencode(named), found.volatile.paths)

    def _follow(self, author: Author, event: Event) -> tuple[SessionRecord, Captured]:
        """Bring the session's record and its conversation up to date."""
        moment = time.time_ns()
        main = self._main(author, event, moment)
        path = event.transcript or os.fsdecode(main.transcript)
        sources = agents.get(main.agent).sources(path) if path else []
        main, captured = self.registry.capture(main, sources)
        if main.state == ENDED:
            self._end_subagents(main)
        if not event.subagent:
            return main, captured
        return self._subagent(main, event, moment) or main, captured

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

    def _subagent(self, main: SessionRecord, event: Event, moment: int) -> SessionRecord | None:
        """The record of a sub-agent; None for what ends without having begun and says not even what
        it is: a task of another kind, or one that the agent keeps to itself."""
        name = f"{event.session}/{event.subagent}"
        known = self.registry.get(name)
        ended = event.event == events.SUBAGENT_END
        if known is None:
            if ended and not event.subagent_kind:
                return None
            known = SessionRecord(
                name, event.agent, started=moment, parent=event.session, prompt_id=event.prompt_id
            )
        record = changed(
            known,
            last=moment,
            uid=main.uid,
            user=main.user,
            kind=event.subagent_kind,
            cwd=os.fsencode(event.cwd),
            transcript=os.fsencode(event.subagent_transcript),
        )
        return self.registry.put(
            msgspec.structs.replace(
                record, state=ENDED if ended else ACTIVE, ended=moment if ended else 0
            )
        )

    def _end_subagents(self, main: SessionRecord) -> None:
        """They end with their session, whether they say so or not."""
        for record in self.registry.active():
            if record.parent == main.id:
                self.registry.put(
                    msgspec.structs.replace(
                        record, state=ENDED, ended=main.ended, reason="its session has ended"
                    )
                )


def _message(event: Event) -> str:
    who = f"{event.subagent_kind or 'sub-agent'} {event.subagent}".rstrip()
    end = f"end of the turn: {event.reason}" if event.reason else "end of the turn"
    text = {
        events.PROMPT: event.prompt.strip(),
        events.TOOL_START: f"before {event.tool}: {concealed(event.tool_text)}",
        events.SUBAGENT_START: f"before {who}",
        events.SUBAGENT_END: f"after {who}",
        events.COMPACTION: "before the conversation is made shorter",
        events.TURN_END: end,
        events.SESSION_END: "end of the session",
    }[event.event]
    return text[:_TEXT_LENGTH]


def _context(
    session: SessionRecord,
    event: Event,
    captured: Captured,
    around: Surroundings,
    complete: bool,
) -> ContextRecord:
    context = ContextRecord(
        session=session.id,
        event=event.event,
        prompt=event.prompt[:_PROMPT_LENGTH] or session.prompt,
        prompt_id=event.prompt_id or session.prompt_id,
        tool=ToolCall(event.tool_id, event.tool, concealed(event.tool_text)[:_TEXT_LENGTH]),
        cwd=os.fsencode(event.cwd),
        marks=captured.marks,
        complete=complete,
        background=event.background,
        missing=captured.missing,
    )
    return around.added_to(context)
