"""Sessions and conversations: what is told twice is made anew, a conversation ends where its pieces
do not go on, and what checkpoints marked beyond that becomes a mark of what is left.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from cowfs.agents.base import MAIN
from cowfs.agents.events import EVENTS
from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.records import CheckpointRecord
from cowfs.format.sessions import (
    ACTIVE,
    ENDED,
    KINDS,
    LINES,
    STATES,
    ContextRecord,
    Mark,
    SessionRecord,
    TranscriptRecord,
    family,
    is_possible_id,
    is_possible_name,
    is_possible_number,
    pack_context,
    piece_parts,
    session_key,
    unpack_context,
    unpack_piece,
)
from cowfs.service.repair.bench import MARKED, REBUILT, Bench
from cowfs.service.repair.epochs import decodable
from cowfs.service.verify.sessions import Chain, context_fault, session_fault

_TABLES = {"session", "transcript", "piece", "context"}
_CHECKS = {
    "record",
    "record-count",
    "session",
    "session-parent",
    "session-file",
    "transcript",
    "piece",
    "context",
    "context-mark",
    "checkpoint-session",
}
_CHECKPOINT = re.compile(rb"[0-9a-f]{12}")
_NOBODY = "unknown"
"""Agent of a session of which only others tell."""


def mend_sessions(bench: Bench) -> bool:
    """Whether anything was done."""
    tables = bench.reader.store.tables
    if not bench.checks & _CHECKS or not tables.keys() >= _TABLES | {"checkpoint"}:
        return False
    _Conversations(bench).mend()
    return bench.apply()


@dataclass
class _Pieces:
    """Those of one transcript that are in order. ends: hash by where a piece ends, ascending.
    others: keys of those that are not, and why."""

    chain: Chain
    ends: dict[int, bytes] = field(default_factory=dict)
    others: list[tuple[bytes, str]] = field(default_factory=list)

    def before(self, length: int) -> int:
        """The last end that is not after `length`; 0 when there is none."""
        return max((end for end in self.ends if end <= length), default=0)


class _Conversations:
    """Records as they are stored and as they will be; `_write` compares the two."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stored: dict[tuple[str, bytes], msgspec.Struct] = {}
        self.sessions = dict(self._read_sessions())
        self.pieces = self._read_pieces()
        self.transcripts = dict(self._read_transcripts())
        self.checkpoints = decodable(bench, "checkpoint", CheckpointRecord)
        self._stored |= {("checkpoint", key): r for key, r in self.checkpoints.items()}
        self.contexts = dict(self._read_contexts())

    def mend(self) -> None:
        self._agree()
        self._mend_transcripts()
        self._missing_sessions()
        for name, session in self.sessions.items():
            self.sessions[name] = self._mended_session(session)
        for key, context in self.contexts.items():
            self.contexts[key] = self._mended_context(context, self.checkpoints[key])
        self._write()

    # -- reading --------------------------------------------------------------------------------

    def _read_sessions(self) -> Iterator[tuple[str, SessionRecord]]:
        for key, value in self._bench.reader.scan("session"):
            try:
                record = records.decode(value, SessionRecord)
            except DamagedRecordError:
                self._aside("session", key, "it cannot be read")
                continue
            if record.id.encode() != key or not is_possible_id(record.id):
                self._aside("session", key, "its key is not its id")
            elif record.id.strip("/") != record.id or record.id.count("/") > 1:
                self._aside("session", key, "its key is no id")
            else:
                self._stored["session", key] = record
                yield record.id, record

    def _read_pieces(self) -> dict[int, _Pieces]:
        found: dict[int, _Pieces] = {}
        for key, value in self._bench.reader.scan("piece"):
            try:
                number, offset = piece_parts(key)
            except DamagedRecordError:
                self._aside("piece", key, "its key is none")
                continue
            pieces = found.setdefault(number, _Pieces(Chain(number)))
            try:
                fault = pieces.chain.fault(offset, *unpack_piece(value))
            except DamagedRecordError as error:
                self._aside("piece", key, error.details["detail"])
                continue
            if fault:
                pieces.others.append((key, fault))
            else:
                pieces.ends[pieces.chain.length] = pieces.chain.hash
        return found

    def _read_transcripts(self) -> Iterator[tuple[int, TranscriptRecord]]:
        for key, value in self._bench.reader.scan("transcript"):
            try:
                record = records.decode(value, TranscriptRecord)
            except DamagedRecordError:
                self._aside("transcript", key, "it cannot be read")
                continue
            if len(key) != 8 or not keys.unpack_id(key):
                self._aside("transcript", key, "its key is no number")
            else:
                self._stored["transcript", key] = record
                yield keys.unpack_id(key), record

    def _read_contexts(self) -> Iterator[tuple[bytes, ContextRecord]]:
        for key, value in self._bench.reader.scan("context"):
            try:
                record = unpack_context(value)
            except DamagedRecordError:
                self._aside("context", key, "it cannot be read")
                continue
            if not _CHECKPOINT.fullmatch(key) or key not in self.checkpoints:
                self._aside("context", key, "its checkpoint does not exist")
            else:
                self._stored["context", key] = record
                yield key, record

    def _aside(self, table: str, key: bytes, why: str) -> None:
        self._bench.set_aside(table, key, keys.thing(table, key), why)

    # -- which session --------------------------------------------------------------------------

    def _agree(self) -> None:
        """A checkpoint and its context are of the same session; the files of the conversation tell
        which. An id that is none is nobody's."""
        for key, checkpoint in self.checkpoints.items():
            context = self.contexts.get(key)
            name = checkpoint.session
            if context is not None and context.session != name:
                files = [self.transcripts.get(mark.transcript) for mark in context.marks]
                owners = {file.session for file in files if file is not None}
                if not name or (family(name) not in owners and family(context.session) in owners):
                    name = context.session
            if name and not _is_id(name):
                name = ""
            if name != checkpoint.session:
                self.checkpoints[key] = msgspec.structs.replace(checkpoint, session=name)
            if context is not None and name != context.session:
                self.contexts[key] = msgspec.structs.replace(context, session=name)

    # -- transcripts ----------------------------------------------------------------------------

    def _mend_transcripts(self) -> None:
        owners = self._owners()
        for number in sorted(self.transcripts.keys() | (self.pieces.keys() & owners.keys())):
            pieces = self.pieces.get(number)
            for key, why in pieces.others if pieces is not None else ():
                self._aside("piece", key, why)
            if pieces is None or not pieces.ends:
                if self.transcripts.pop(number, None) is not None:
                    self._aside("transcript", keys.pack_id(number), "its bytes are lost")
                continue
            record = self.transcripts.get(number)
            if record is None:
                record = self._told_transcript(number, owners[number])
            chain = pieces.chain
            record = msgspec.structs.replace(
                record,
                length=chain.length,
                hash=chain.hash,
                tail=chain.tail,
                kind=record.kind if record.kind in KINDS else LINES,
                path=record.path if b"\0" not in record.path else b"",
                name=record.name if is_possible_name(record.name) else f"lost/{number}",
            )
            if not _is_id(record.session) or family(record.session) != record.session:
                if number not in owners:
                    del self.transcripts[number]
                    self._aside("transcript", keys.pack_id(number), "nothing tells whose it is")
                    continue
                record = msgspec.structs.replace(record, session=owners[number])
            self.transcripts[number] = record

    def _owners(self) -> dict[int, str]:
        """By transcript, the session that others say it is of."""
        found: dict[int, str] = {}
        for context in self.contexts.values():
            for mark in context.marks:
                if context.session and is_possible_number(mark.transcript):
                    found[mark.transcript] = family(context.session)
        for session in self.sessions.values():
            found |= {n: session.id for n in session.files if "/" not in session.id}
        return found

    def _told_transcript(self, number: int, owner: str) -> TranscriptRecord:
        """One that is lost: the first file of a session is its main one, others have no name."""
        session = self.sessions.get(owner)
        files = session.files if session is not None else ()
        named = {r.name for r in self.transcripts.values() if r.session == owner}
        if MAIN not in named and (not files or files[0] == number):
            path = session.transcript if session is not None else b""
            return TranscriptRecord(owner, MAIN, path, LINES)
        return TranscriptRecord(owner, f"lost/{number}", b"", LINES)

    # -- sessions -------------------------------------------------------------------------------

    def _missing_sessions(self) -> None:
        wanted = {record.session for record in self.checkpoints.values()}
        wanted |= {record.session for record in self.transcripts.values()} | set(self.sessions)
        for name in sorted(wanted - {""}):
            for one in (family(name), name):
                if one not in self.sessions:
                    above = family(one)
                    self.sessions[one] = SessionRecord(
                        one,
                        _NOBODY,
                        ENDED,
                        parent=above if above != one else "",
                        files=self._newest_files(one),
                    )

    def _newest_files(self, session: str) -> tuple[int, ...]:
        newest = {r.name: n for n, r in sorted(self.transcripts.items()) if r.session == session}
        return tuple(sorted(newest.values()))

    def _mended_session(self, record: SessionRecord) -> SessionRecord:
        above = family(record.id)
        files: dict[str, int] = {}
        for number in record.files:
            file = self.transcripts.get(number)
            if file is not None and file.session == record.id:
                files[file.name] = number
        record = msgspec.structs.replace(
            record, parent=above if above != record.id else "", files=tuple(files.values())
        )
        if session_fault(record):
            state = record.state if record.state in STATES else ENDED
            record = msgspec.structs.replace(
                record,
                state=state,
                ended=record.ended if state != ACTIVE else 0,
                agent=record.agent or _NOBODY,
                uid=max(record.uid, 0),
                pid=max(record.pid, 0),
                born=max(record.born, 0),
                cwd=record.cwd if b"\0" not in record.cwd else b"",
                transcript=record.transcript if b"\0" not in record.transcript else b"",
            )
        return record

    # -- contexts -------------------------------------------------------------------------------

    def _mended_context(self, record: ContextRecord, of: CheckpointRecord) -> ContextRecord:
        marks = []
        for mark in record.marks:
            file = self.transcripts.get(mark.transcript)
            if file is None or file.session != family(record.session):
                continue
            pieces = self.pieces[mark.transcript]
            if end := pieces.before(mark.length):
                marks.append(Mark(mark.transcript, end, pieces.ends[end]))
        lengths = {mark.transcript: mark.length for mark in marks}
        whole = lengths == {mark.transcript: mark.length for mark in record.marks}
        record = msgspec.structs.replace(
            record, marks=tuple(marks), complete=record.complete and whole
        )
        if context_fault(record, of):
            record = msgspec.structs.replace(
                record,
                event=record.event if record.event in EVENTS else "",
                background=max(record.background, 0),
                environment=tuple(sorted(dict(record.environment).items())),
                ports=(),
                processes=(),
                files=(),
            )
        return record

    # -- writing --------------------------------------------------------------------------------

    def _write(self) -> None:
        wanted: dict[tuple[str, bytes], msgspec.Struct] = {}
        wanted |= {("session", session_key(name)): r for name, r in self.sessions.items()}
        wanted |= {("transcript", keys.pack_id(n)): r for n, r in self.transcripts.items()}
        wanted |= {("checkpoint", key): record for key, record in self.checkpoints.items()}
        wanted |= {("context", key): record for key, record in self.contexts.items()}
        for (table, key), record in wanted.items():
            if (before := self._stored.get((table, key))) == record:
                continue
            value = records.encode(record)
            if isinstance(record, ContextRecord):
                value = pack_context(record)
            self._bench.put(table, key, value)
            self._tell(table, key, before, record)

    def _tell(
        self, table: str, key: bytes, before: msgspec.Struct | None, record: msgspec.Struct
    ) -> None:
        how, detail = REBUILT, "as the others tell" if before is not None else ""
        if before is None:
            detail = "made of what others tell"
            if isinstance(record, SessionRecord):
                how, detail = MARKED, "a session of which nothing else is known"
        elif isinstance(before, TranscriptRecord) and isinstance(record, TranscriptRecord):
            if record.length < before.length:
                how = MARKED
                detail = f"{before.length - record.length} of its {before.length} bytes are lost"
        elif (
            isinstance(record, ContextRecord)
            and isinstance(before, ContextRecord)
            and record.complete != before.complete
        ):
            how, detail = MARKED, "a part of its conversation is lost"
        self._bench.did(how, table, keys.thing(table, key), detail)


def _is_id(name: str) -> bool:
    return is_possible_id(name) and name.strip("/") == name and name.count("/") <= 1
