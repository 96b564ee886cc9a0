"""The sessions that a daemon knows, and the files of their conversations.

Threading: for the threads that an `Engine` is for; `lock` is held while a session is looked up and
changed, never by the thread that owns the volume. Where the lock of the operations is taken, too,
it is taken first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

import msgspec

from cowfs.agents.base import Source
from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.sessions import ENDED, SessionRecord, session_key
from cowfs.service.engine import Engine
from cowfs.service.sessions import reading
from cowfs.service.sessions.transcripts import Captured, Transcripts
from cowfs.store.snapshot import Reader


class Registry:
    """Sessions by id. What is changed is part of the next transaction group."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.lock = threading.RLock()
        self.transcripts = Transcripts(engine)
        self._known: dict[str, SessionRecord] = {}

    def get(self, session: str) -> SessionRecord | None:
        """One of them; one that cannot be read is none."""
        with self.lock:
            found = self._known.get(session)
            if found is None:
                with Reader(self._engine.volume.store) as reader:
                    try:
                        found = reading.session(reader, session)
                    except DamagedRecordError:
                        return None
            return found

    def active(self) -> list[SessionRecord]:
        """Those that have not ended, as far as they were heard of in this life of the daemon."""
        with self.lock:
            return [record for record in self._known.values() if record.state != ENDED]

    def put(self, record: SessionRecord) -> SessionRecord:
        """Store a session, new or changed."""
        with self.lock:
            key, value = session_key(record.id), records.encode(record)
            self._engine.call(lambda: self._engine.volume.extra.put("session", key, value))
            self._keep(record)
            return record

    def capture(
        self, record: SessionRecord, sources: Iterable[Source]
    ) -> tuple[SessionRecord, Captured]:
        """Store a session, and what is new of the files of its conversation; what comes back has
        their numbers."""
        with self.lock:
            record, captured = self.transcripts.capture(record, sources)
            self._keep(record)
            return record, captured

    def _keep(self, record: SessionRecord) -> None:
        self._known[record.id] = record
        if record.state == ENDED:
            self.transcripts.forget(record.id)

    def change(self, session: str, change: Callable[[SessionRecord], SessionRecord]) -> None:
        """Change one if it is there."""
        with self.lock:
            found = self.get(session)
            if found is not None:
                self.put(change(found))

    def drop(self, members: Collection[SessionRecord], transcripts: Iterable[int]) -> bool:
        """Remove a session with its sub-agents and all of its transcripts, with the next group;
        False if any is not what it was. Whoever holds the lock until that is committed makes sure
        that none comes back as it was."""
        with self.lock:
            if any(self._known.get(record.id, record) != record for record in members):
                return False

            def delete() -> None:
                extra = self._engine.volume.extra
                for record in members:
                    extra.delete("session", session_key(record.id))
                for number in transcripts:
                    extra.delete("transcript", keys.pack_id(number))

            self._engine.call(delete)
            for record in members:
                self._known.pop(record.id, None)
                self.transcripts.forget(record.id)
            return True


def changed(record: SessionRecord, **fields: object) -> SessionRecord:
    """The same session with other fields; those that are empty or 0 stay as they are."""
    return msgspec.structs.replace(record, **{k: v for k, v in fields.items() if v})
