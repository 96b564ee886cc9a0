"""Going back to what was said up to a checkpoint, in a copy of the conversation.

The agent's own files are never written. Its adapter makes the copy (cowfs/agents/base.py), under an
id of its own; placing.py puts its files where they belong, together with a restore or alone.

Threading: for the threads that an `Engine` is for; `add` and `withdrawn` of a `Copying` belong to
the thread that owns the volume.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cowfs import agents
from cowfs.agents.base import Copy, NotCopyableError
from cowfs.agents.events import PROMPT
from cowfs.errors import (
    NoConversationError,
    NotCopyableConversationError,
    UnknownSessionError,
)
from cowfs.format import records
from cowfs.format.sessions import (
    ACTIVE,
    ENDED,
    ContextRecord,
    Mark,
    SessionRecord,
    is_possible_id,
    session_key,
)
from cowfs.service.engine import Engine, commit
from cowfs.service.selectors import on_line
from cowfs.service.sessions import reading
from cowfs.service.sessions.originals import look_at_original, marks_of
from cowfs.service.sessions.placing import Placement
from cowfs.service.sessions.registry import Registry
from cowfs.service.sessions.transcripts import Captured
from cowfs.store.group import TransactionGroup
from cowfs.store.snapshot import Reader
from cowfs.volume.history import Author, Companion

COPIED = "a copy, not continued yet"
"""Why the session of a copy is not active."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a conversation goes on.

    session: id of the copy, or of the original itself. origin: id of the original of a copy, "".
    command: what goes on with it, () where nobody knows; before: what must be run first; both in
    the directory `cwd`. files: of the copy. prompt: what was about to be asked, which can be typed
    again; "" when the checkpoint is not one of before a prompt. complete: whether all that belonged
    to the conversation was stored. notes: what a person should know.
    """

    session: str
    agent: str
    title: str
    command: tuple[str, ...]
    cwd: str
    origin: str = ""
    before: tuple[tuple[str, ...], ...] = ()
    files: tuple[str, ...] = ()
    prompt: str = ""
    complete: bool = True
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in self.__slots__}


def _plain(value: object) -> object:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


class Copying(Companion):
    """A copy that is being made. Its files are there, under other names; they get their own when
    the transaction group of `add` is committed, and `finish` is called."""

    def __init__(
        self,
        engine: Engine,
        author: Author,
        session: SessionRecord,
        copy: Copy,
        told: Continuation,
    ) -> None:
        """session: of the original. Raises NotCopyableConversationError, StoreFullError."""
        self.told = told
        self.committed = False
        self._engine = engine
        self._added = False
        self._record = _record(author, session, told)
        self._placement = Placement(engine, copy.session, copy.files)
        self._placement.write()

    def add(self, group: TransactionGroup) -> None:
        self._added = True
        self._placement.add(group)
        group.put("session", session_key(self._record.id), records.encode(self._record))

    def withdrawn(self) -> None:
        self._added = False

    def finish(self) -> Continuation:
        """The group is committed: the files get their names."""
        self._placement.finish()
        return self.told

    def give_up(self) -> None:
        """What it goes with has failed. Whether its group will be committed may not be known: then
        whoever opens the store next does what is right."""
        if self.committed:
            self.finish()
        elif not self._added:
            self._placement.discard()


def planned(
    reader: Reader, point: records.CheckpointRecord
) -> tuple[SessionRecord, Copy, Continuation]:
    """The session of a checkpoint, and the copy of its conversation as it was then, of which
    nothing is done yet.

    Raises NoConversationError, NotCopyableConversationError, DamagedRecordError.
    """
    found = reading.context(reader, point.id)
    if found is None or not found.session:
        raise _no_conversation(reader, point)
    session = _session(reader, found.session, f"checkpoint {point.id[:8]}")
    files = reading.conversation(reader, found)
    if not any(files.values()):
        raise NotCopyableConversationError(detail="nothing had been said before that checkpoint")
    copy = _copy(session, files, reading.transcript_path(reader, found), found.leaf)
    prompt = found.prompt if found.event == PROMPT else ""
    return session, copy, _told(session, copy, prompt, complete=found.complete)


def copy_of(engine: Engine, author: Author, point: records.CheckpointRecord) -> Copying:
    """Begin to copy the conversation as it was at a checkpoint. Raises what `planned` raises, and
    StoreFullError."""
    with Reader(engine.volume.store) as reader:
        session, copy, told = planned(reader, point)
    return Copying(engine, author, session, copy, told)


def copy_of_session(
    engine: Engine, author: Author, session: SessionRecord, marks: Sequence[Mark]
) -> Copying:
    """Begin to copy a conversation as far as it is stored. Errors as of `copy_of`."""
    found = ContextRecord(session.id, marks=tuple(marks))
    with Reader(engine.volume.store) as reader:
        files = reading.conversation(reader, found)
        transcript = reading.transcript_path(reader, found)
    if not any(files.values()):
        raise nothing_stored(session)
    copy = _copy(session, files, transcript, "")
    return Copying(engine, author, session, copy, _told(session, copy, "", complete=True))


def make(engine: Engine, copying: Copying) -> Continuation:
    """Finish a copy that goes with nothing else. Raises StoreFullError."""
    try:
        engine.call(lambda: copying.add(engine.volume.extra))
        commit(engine)
        copying.committed = True
    except BaseException:
        copying.give_up()
        raise
    return copying.finish()


def copy_session(engine: Engine, registry: Registry, author: Author, name: str) -> Continuation:
    """Copy a conversation as far as it goes now, of which its files may be gone or damaged.

    Raises UnknownSessionError, and the errors of `copy_of`.
    """
    with registry.lock:
        session = registry.get(name)
        if session is None or session.parent:
            raise UnknownSessionError(selector=name)
        with Reader(engine.volume.store) as reader:
            begins = look_at_original(reader, session).begins
        captured = Captured()
        if begins:  # what it has more than is stored is part of it; else what is stored is better
            path = os.fsdecode(session.transcript)
            sources = agents.get(session.agent).sources(path)
            session, captured = registry.capture(session, sources)
    commit(engine)
    with Reader(engine.volume.store) as reader:
        marks = captured.marks or marks_of(reader, session)
    return make(engine, copy_of_session(engine, author, session, marks))


def nothing_stored(session: SessionRecord) -> NoConversationError:
    """The error for a session without a conversation."""
    return NoConversationError(
        what=f"session {session.id}",
        detail="nothing of it is stored",
        advice="Hooks tell cowfs where it is (`cowfs hooks install`), or `cowfs session start`.",
    )


def _no_conversation(reader: Reader, point: records.CheckpointRecord) -> NoConversationError:
    advice = "`cowfs sessions` lists the sessions, `cowfs log --session ID` their checkpoints."
    for earlier in on_line(reader, reader.lineage(point.epoch)):
        if earlier.session and earlier.id != point.id:
            advice = f"The last one before it that can have one is {earlier.id[:8]}. {advice}"
            break
    return NoConversationError(
        what=f"checkpoint {point.id[:8]}",
        detail="it was made without an agent's session",
        advice=advice,
    )


def _session(reader: Reader, name: str, what: str) -> SessionRecord:
    """The session of a context, not that of a sub-agent."""
    session = reading.session(reader, name.partition("/")[0]) if name else None
    if session is None:
        advice = "`cowfs verify` says what is damaged."
        raise NoConversationError(what=what, detail="its session is not stored", advice=advice)
    return session


def _copy(session: SessionRecord, files: Mapping[str, bytes], transcript: str, leaf: str) -> Copy:
    try:
        copy = agents.get(session.agent).copy(
            files, transcript=transcript, cwd="", session=session.id, leaf=leaf
        )
    except NotCopyableError as error:
        raise NotCopyableConversationError(detail=str(error)) from None
    if not is_possible_id(copy.session) or "/" in copy.session:
        raise NotCopyableConversationError(detail=f"{copy.session!r} cannot be its id")
    return copy


def _told(session: SessionRecord, copy: Copy, prompt: str, *, complete: bool) -> Continuation:
    notes = copy.notes
    if session.pid and reading.state(session) == ACTIVE:
        running = f"the original is still running (pid {session.pid}): end it before you go on"
        notes = (*notes, f"{running} in the copy, or both work on the same files")
    return Continuation(
        session=copy.session,
        agent=session.agent,
        title=agents.get(session.agent).title,
        command=copy.command,
        cwd=copy.cwd or os.fsdecode(session.cwd),
        origin=session.id,
        before=copy.before,
        files=tuple(copy.files),
        prompt=prompt,
        complete=complete,
        notes=notes,
    )


def _record(author: Author, session: SessionRecord, told: Continuation) -> SessionRecord:
    """The session that the copy will be when somebody goes on with it."""
    moment = time.time_ns()
    files = told.files if not told.before else ()  # else they are for a program that imports them
    named = [path for path in files if told.session in os.path.basename(path)]
    if not named and len(files) == 1:
        named = list(files)
    return SessionRecord(
        told.session,
        told.agent,
        state=ENDED,
        started=moment,
        last=moment,
        ended=moment,
        reason=COPIED,
        uid=author.uid,
        user=author.user,
        cwd=os.fsencode(told.cwd),
        transcript=os.fsencode(named[0] if named else ""),
        title=session.title,
        version=session.version,
        origin=told.origin,
    )
