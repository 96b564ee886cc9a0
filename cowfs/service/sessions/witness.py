"""What is kept with a checkpoint that somebody asks for, or that is made by itself.

Who asks waits, and ends when it is answered. So what only it knows is read before, which takes as
long as a few system calls; the rest is looked at just after the answer, and stored in a transaction
group of its own. Whoever reads the store through the daemon (`flush`) waits for that.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from cowfs import agents
from cowfs.format.records import CheckpointRecord
from cowfs.format.sessions import (
    ACTIVE,
    ContextRecord,
    SessionRecord,
    is_possible_id,
    pack_context,
)
from cowfs.mount.loop import LoopEndedError
from cowfs.service.checkpoint import checkpoint
from cowfs.service.engine import Engine, commit
from cowfs.service.removing import Operation
from cowfs.service.sessions.liveness import boot_id, is_running
from cowfs.service.sessions.registry import Registry
from cowfs.service.sessions.surroundings import look_around, processes
from cowfs.service.sessions.transcripts import Captured
from cowfs.store.env import LmdbError
from cowfs.store.writer import WriterEndedError
from cowfs.volume.history import Author

VARIABLES = ("COWFS_SESSION", "CLAUDE_CODE_SESSION_ID", "GEMINI_SESSION_ID", "CODEX_THREAD_ID")
"""In which agents tell what they start the id of the session."""
_WAIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for a checkpoint. root: the process below which everything is that belongs to it:
    its session's, or the first one of its terminal. missing: what could not be found out."""

    pid: int
    root: int
    environment: dict[str, str]
    cwd: bytes
    session: SessionRecord | None
    missing: tuple[str, ...] = ()


class Witness:
    """Notes contexts, in one daemon."""

    def __init__(self, engine: Engine, operation: Operation, registry: Registry) -> None:
        self._engine = engine
        self._operation = operation
        self._registry = registry
        self._changed = threading.Condition()
        self._noting = 0

    def checkpoint(
        self, author: Author, *, message: str = "", label: str = ""
    ) -> tuple[CheckpointRecord, Callable[[], None]]:
        """Make a checkpoint for somebody, and what stores its context later (see `later`). Errors
        as of service/checkpoint.py."""
        caller = self.meet(author)
        made = checkpoint(
            self._engine,
            author,
            message=message,
            label=label,
            session=caller.session.id if caller.session is not None else "",
        )
        return made, self.later(made, caller)

    # -- who asks ---------------------------------------------------------------------------------

    def meet(self, author: Author) -> Caller:
        """Look at who asks, while it waits."""
        missing = []
        try:
            environment = processes.variables(processes.raw_environment(author.pid))
        except OSError as error:
            environment = {}
            missing.append(f"the environment of process {author.pid}: {error.strerror}")
        session = self._session_of(author.pid, environment)
        root = session.pid if session is not None and is_running(session) else 0
        return Caller(
            author.pid,
            root or _first_of_terminal(author.pid),
            environment,
            processes.working_directory(author.pid),
            session,
            tuple(missing),
        )

    def _session_of(self, pid: int, environment: dict[str, str]) -> SessionRecord | None:
        """The session that a process belongs to: it says so, or descends from its process."""
        for name in VARIABLES:
            found = self._known(environment[name]) if name in environment else None
            if found is not None and found.state == ACTIVE:
                return found
        running = {
            (record.pid, record.born): record
            for record in self._registry.active()
            if record.pid and record.boot == boot_id()
        }
        if running:
            for above, seen in processes.ancestors(pid):
                if (above, seen.start) in running:
                    return running[above, seen.start]
        return None

    def _known(self, name: str) -> SessionRecord | None:
        try:
            return self._registry.get(name) if is_possible_id(name) else None
        except LmdbError:
            return None  # a damaged page is no reason against a checkpoint

    # -- what is kept -----------------------------------------------------------------------------

    def later(self, made: CheckpointRecord, caller: Caller) -> Callable[[], None]:
        """What stores the context of a checkpoint that was made for somebody; `wait` waits until
        it was run. It raises CowfsError."""
        with self._changed:
            self._noting += 1

        def run() -> None:
            try:
                self._note(made, caller)
            except (LoopEndedError, WriterEndedError):
                pass  # unmounted meanwhile
            finally:
                with self._changed:
                    self._noting -= 1
                    self._changed.notify_all()

        return run

    def wait(self) -> None:
        """Until what is being noted is stored; not for long, since that may have to wait itself."""
        with self._changed:
            self._changed.wait_for(lambda: not self._noting, _WAIT_SECONDS)

    def _note(self, made: CheckpointRecord, caller: Caller) -> None:
        around = look_around(self._engine, caller.root, caller.environment, without=(caller.pid,))
        session, captured = self._conversation(caller.session)
        context = ContextRecord(
            session=made.session,
            prompt=session.prompt if session is not None else "",
            prompt_id=session.prompt_id if session is not None else "",
            cwd=caller.cwd,
            marks=captured.marks,
            complete=captured.complete,
            missing=(*caller.missing, *captured.missing),
        )
        key, value = made.id.encode(), pack_context(around.added_to(context))
        with self._operation:  # nobody removes the checkpoint between the look and the record
            self._engine.call(lambda: self._put(key, value))
        commit(self._engine)

    def _put(self, key: bytes, value: bytes) -> None:
        volume = self._engine.volume
        if volume.reader.get("checkpoint", key) is not None:  # else it was removed meanwhile
            volume.extra.put("context", key, value)

    def _conversation(self, session: SessionRecord | None) -> tuple[SessionRecord | None, Captured]:
        """A session as it is now, with its conversation brought up to date."""
        if session is None:
            return None, Captured()
        with self._registry.lock:
            found = self._registry.get(session.id) or session
            path = os.fsdecode(found.transcript)
            sources = agents.get(found.agent).sources(path) if path else []
            return self._registry.capture(found, sources)

    def automatic(self) -> tuple[str, bytes, Captured]:
        """(session, value of its context, what must live until it is stored) of a checkpoint that
        the daemon makes by itself: of the only session that is going on. "" and b"" when there is
        none, or more than one."""
        going_on = [
            record for record in self._registry.active() if not record.parent and is_running(record)
        ]
        if len(going_on) != 1:
            return "", b"", Captured()
        session, captured = self._conversation(going_on[0])
        assert session is not None
        context = ContextRecord(
            session=session.id,
            prompt=session.prompt,
            prompt_id=session.prompt_id,
            cwd=session.cwd,
            marks=captured.marks,
            complete=captured.complete,
            missing=captured.missing,
        )
        return session.id, pack_context(context), captured


def _first_of_terminal(pid: int) -> int:
    """The first process of the session (setsid(2)) that a process is in, as far up as its ancestors
    are in it; its parent when it is alone in there; 0 if that is the first of the machine."""
    try:
        terminal = os.getsid(pid)
    except OSError:
        return 0
    found = 0
    for ancestor, _ in islice(processes.ancestors(pid), 1, None):
        try:
            inside = os.getsid(ancestor) == terminal
        except OSError:
            inside = False
        if inside or not found:
            found = ancestor
        if not inside:
            break
    return found
