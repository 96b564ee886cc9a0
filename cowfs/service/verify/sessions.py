"""Checks of sessions, their conversations, and what checkpoints keep of them.

Contexts are read before the pieces, so that one pass over these, which are the most of it, sees all
marks; memory holds what marks there are.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from cowfs.agents.events import EVENTS
from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.records import CheckpointRecord
from cowfs.format.sessions import (
    ENDED,
    KINDS,
    NOTHING,
    STATES,
    TAIL_BYTES,
    ContextRecord,
    Mark,
    SessionRecord,
    TranscriptRecord,
    chained,
    family,
    is_possible_id,
    is_possible_name,
    piece_parts,
    unpack_context,
    unpack_piece,
)
from cowfs.service.verify.report import NOTE
from cowfs.service.verify.scan import Scan

_CHECKPOINT = re.compile(rb"[0-9a-f]{12}")
_PORTS = range(1 << 16)
_T = TypeVar("_T", bound=msgspec.Struct)


@dataclass(slots=True)
class Told:
    """What the tables say, as far as it decodes. damaged: keys of what does not, by table."""

    sessions: dict[str, SessionRecord] = field(default_factory=dict)
    transcripts: dict[int, TranscriptRecord] = field(default_factory=dict)
    damaged: dict[str, set[bytes]] = field(default_factory=dict)

    def has_session(self, name: str) -> bool:
        """Whether there is a session, damaged or not."""
        return name in self.sessions or name.encode() in self.damaged["session"]

    def has_transcript(self, number: int) -> bool:
        """Whether there is a transcript, damaged or not."""
        damaged = self.damaged["transcript"]
        return number in self.transcripts or any(keys.unpack_id(key) == number for key in damaged)


def check_sessions(scan: Scan) -> None:
    """The four tables say the same of each other, and pieces are what they were."""
    told = read_sessions(scan)
    _report(scan, told)
    marks = _contexts(scan, told)
    wrong = _pieces(scan, told, marks)
    if wrong:
        _report_marks(scan, wrong)
    checkpoints = scan.history.checkpoints if scan.readable("checkpoint") else []
    for record in checkpoints:
        if record.session and not told.has_session(record.session):
            detail = f"its session {record.session!r} does not exist"
            scan.problem(
                "checkpoint-session", "checkpoint", record.id, detail, checkpoints=[record.id]
            )


def read_sessions(scan: Scan) -> Told:
    """Sessions and transcripts; what cannot be read is reported."""
    told = Told()

    def session_name(key: bytes, record: SessionRecord) -> str | None:
        return record.id if record.id.encode() == key and is_possible_id(record.id) else None

    def number(key: bytes, record: TranscriptRecord) -> int | None:
        return keys.unpack_id(key) if len(key) == 8 and keys.unpack_id(key) else None

    told.sessions = _decoded(scan, told, "session", SessionRecord, session_name)
    told.transcripts = _decoded(scan, told, "transcript", TranscriptRecord, number)
    return told


_Key = TypeVar("_Key")


def _decoded(
    scan: Scan, told: Told, table: str, kind: type[_T], named: Callable[[bytes, _T], _Key | None]
) -> dict[_Key, _T]:
    found: dict[_Key, _T] = {}
    falsified, damaged = len(scan.falsified), told.damaged.setdefault(table, set())
    for key, value in scan.each(table):
        thing = keys.thing(table, key)
        try:
            record = records.decode(value, kind)
        except DamagedRecordError as error:
            damaged.add(key)
            scan.problem("record", table, thing, error.details["detail"])
            continue
        if (name := named(key, record)) is None:
            scan.problem("record", table, thing, "its key does not fit it")
        else:
            found[name] = record
    damaged |= {key for of, key in scan.falsified[falsified:] if of == table}
    return found


def hit(scan: Scan, table: str, key: bytes) -> list[str]:
    """The checkpoints that need a record of these tables, as far as contexts say."""
    if table == "context":
        return [keys.thing(table, key)]
    if table == "session":
        made = scan.history.checkpoints if scan.readable("checkpoint") else []
        return [record.id for record in made if record.session.encode() == key]
    number, offset = keys.unpack_id(key), 0
    if table == "piece" and len(key) == 16:
        offset = piece_parts(key)[1]
    found = []
    for name, value in scan.reader.scan("context"):
        try:
            marks = unpack_context(value).marks
        except DamagedRecordError:
            continue
        if any(mark.transcript == number and mark.length > offset for mark in marks):
            found.append(keys.thing("context", name))
    return found


# -- sessions and transcripts -----------------------------------------------------------------


def _report(scan: Scan, told: Told) -> None:
    for name, session in told.sessions.items():
        for check, detail in session_faults(session, told):
            scan.problem(check, "session", name, detail)
    for number, transcript in told.transcripts.items():
        if detail := transcript_fault(transcript, told):
            _about_transcript(scan, number, detail)


def _about_transcript(scan: Scan, number: int, detail: str) -> None:
    checkpoints = hit(scan, "transcript", keys.pack_id(number))
    scan.problem("transcript", "transcript", f"{number}", detail, checkpoints=checkpoints)


def session_faults(record: SessionRecord, told: Told) -> Iterator[tuple[str, str]]:
    """(check, what is wrong) of a session."""
    if fault := session_fault(record):
        yield "session", fault
    if record.parent and not told.has_session(record.parent):
        yield "session-parent", f"its parent {record.parent!r} does not exist"
    names = set()
    for number in record.files:
        file = told.transcripts.get(number)
        if file is None:
            if not told.has_transcript(number):
                yield "session-file", f"there is no transcript {number}"
        elif file.session != record.id:
            yield "session-file", f"transcript {number} is of the session {file.session!r}"
        elif file.name in names:
            yield "session-file", f"it goes on with two files {file.name!r}"
        else:
            names.add(file.name)


def session_fault(record: SessionRecord) -> str:
    """What cannot be so in a session by itself, "" when all can."""
    above = family(record.id)
    if record.state not in STATES or (record.state != ENDED and record.ended):
        return f"its state is {record.state!r}, its end {record.ended}"
    if record.parent != (above if above != record.id else ""):
        return f"its parent is {record.parent!r}"
    if record.id.count("/") > 1 or record.id[:1] == "/" or record.id[-1:] == "/":
        return "its id is none of a sub-agent"
    if record.parent and record.files:
        return "it is a sub-agent, and has files"
    if min(record.uid, record.pid, record.born) < 0 or not record.agent:
        return f"its agent is {record.agent!r}, its user {record.uid}, its process {record.pid}"
    if b"\0" in record.cwd or b"\0" in record.transcript:
        return "it has a path that is none"
    return ""


def transcript_fault(record: TranscriptRecord, told: Told) -> str:
    """What cannot be so in a transcript, but for what its pieces say."""
    if not told.has_session(record.session) or family(record.session) != record.session:
        return f"its session {record.session!r} does not exist"
    if not is_possible_name(record.name) or b"\0" in record.path:
        return f"its name is {record.name!r}"
    if record.kind not in KINDS:
        return f"its kind is {record.kind!r}"
    return ""


# -- contexts ---------------------------------------------------------------------------------

_Marks = dict[int, dict[int, set[bytes]]]
"""By transcript and length the hashes that marks say."""


def _contexts(scan: Scan, told: Told) -> _Marks:
    """Report what cannot be so in contexts, and collect the marks that pieces must be looked at
    for."""
    marks: _Marks = {}
    readable = scan.readable("checkpoint")
    checkpoints = {r.id: r for r in scan.history.checkpoints} if readable else {}
    for key, value in scan.each("context"):
        name = keys.thing("context", key)
        try:
            context = unpack_context(value)
        except DamagedRecordError as error:
            scan.problem("record", "context", name, error.details["detail"], checkpoints=[name])
            continue
        if not _CHECKPOINT.fullmatch(key):
            scan.problem("record", "context", name, "its key is no id of a checkpoint")
            continue
        if readable and not scan.has("checkpoint", key):
            scan.problem("context", "context", name, "its checkpoint does not exist")
        elif detail := context_fault(context, checkpoints.get(name)):
            scan.problem("context", "context", name, detail, checkpoints=[name])
        for mark in context.marks:
            if detail := mark_fault(context, mark, told):
                scan.problem("context-mark", "context", name, detail, checkpoints=[name])
            else:
                lengths = marks.setdefault(mark.transcript, {})
                lengths.setdefault(mark.length, set()).add(mark.hash)
    return marks


def context_fault(context: ContextRecord, checkpoint: CheckpointRecord | None) -> str:
    """What cannot be so in a context, but for its marks."""
    if checkpoint is not None and context.session != checkpoint.session:
        return f"its session is {context.session!r}, its checkpoint's {checkpoint.session!r}"
    if context.event and context.event not in EVENTS:
        return f"there is no event {context.event!r}"
    if any(port.port not in _PORTS for port in context.ports):
        return "it has a port that is none"
    if [*context.environment] != sorted(dict(context.environment).items()):
        return "its environment is not in order"
    numbers = [context.background, *(process.pid for process in context.processes)]
    numbers += [file.offset for file in context.files]
    return "it has a number below 0" if min(numbers) < 0 else ""


def mark_fault(context: ContextRecord, mark: Mark, told: Told) -> str:
    """What cannot be so in a mark, but for what the pieces say."""
    file = told.transcripts.get(mark.transcript)
    if file is None:
        known = told.has_transcript(mark.transcript)
        return "" if known else f"there is no transcript {mark.transcript}"
    if file.session != family(context.session):
        return f"transcript {mark.transcript} is of the session {file.session!r}"
    if mark.length < 1:
        return f"it has a mark of length {mark.length}"
    return ""


def _report_marks(scan: Scan, wrong: set[Mark]) -> None:
    for key, value in scan.reader.scan("context"):
        try:
            context = unpack_context(value)
        except DamagedRecordError:
            continue
        name = keys.thing("context", key)
        for mark in context.marks:
            if mark in wrong:
                detail = f"no piece of transcript {mark.transcript} ends at {mark.length} so"
                scan.problem("context-mark", "context", name, detail, checkpoints=[name])


# -- pieces -----------------------------------------------------------------------------------


class Chain:
    """The pieces of one transcript, one after the other. broken: they do not go on. stray: there is
    no such transcript."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.length, self.hash, self.tail = 0, NOTHING, b""
        self.broken = self.stray = False

    def fault(self, offset: int, digest: bytes, data: bytes) -> str:
        """Add a piece; what is wrong with it, "" when nothing is."""
        if offset != self.length:
            return f"it begins at {offset}, the one before it ends at {self.length}"
        if chained(self.hash, data) != digest:
            return "its hash is not that of its bytes after the ones before"
        self.length, self.hash = offset + len(data), digest
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        return ""

    def differs(self, record: TranscriptRecord) -> str:
        """What a transcript says of its pieces that is not so."""
        if record.length != self.length:
            return f"its length is {record.length}, its pieces have {self.length} bytes"
        if (record.hash, record.tail) != (self.hash, self.tail):
            return "its hash, or its last bytes, are not those of its pieces"
        return "" if record.length else "it has no pieces"


def _pieces(scan: Scan, told: Told, marks: _Marks) -> set[Mark]:
    """Compare pieces with each other, their transcripts and the marks; returns those marks that do
    not fit."""
    wrong: set[Mark] = set()
    stray = 0
    unseen = dict(told.transcripts)
    for chain in _chains(scan, told, marks, wrong):
        record = unseen.pop(chain.number, None)
        if record is None:
            stray += chain.stray
        elif not chain.broken and (detail := chain.differs(record)):
            _about_transcript(scan, chain.number, detail)
    falsified = {keys.unpack_id(key) for table, key in scan.falsified if table == "piece"}
    for number, record in unseen.items():
        if number not in falsified:
            detail = Chain(number).differs(record)
            _about_transcript(scan, number, detail)
            wrong |= _marks_of(number, marks)
    if stray:
        detail = f"pieces of {stray} transcripts that are not there any more take space"
        scan.problem("leftover", "piece", "table", detail, severity=NOTE)
    return wrong


def _marks_of(number: int, marks: _Marks) -> set[Mark]:
    lengths = marks.pop(number, {})
    return {Mark(number, length, told) for length in lengths for told in lengths[length]}


def _chains(scan: Scan, told: Told, marks: _Marks, wrong: set[Mark]) -> Iterator[Chain]:
    """The chain of each transcript that has pieces, when it is at its end or broken; what is wrong
    with pieces is reported, and marks that they do not fit are added to `wrong`. Of a transcript
    that is not there (retention.py) some pieces may have gone already."""
    chain: Chain | None = None
    damaged, looked = set[int](), len(scan.falsified)

    def ended(chain: Chain) -> Chain:
        damaged.update(keys.unpack_id(key) for _, key in scan.falsified[looked:])
        chain.broken |= chain.number in damaged
        left = _marks_of(chain.number, marks)
        if not chain.broken:
            wrong.update(left)
        return chain

    for key, value in scan.each("piece"):
        thing = keys.thing("piece", key)
        try:
            number, offset = piece_parts(key)
            digest, data = unpack_piece(value)
        except DamagedRecordError as error:
            detail, checkpoints = error.details["detail"], hit(scan, "piece", key)
            scan.problem("record", "piece", thing, detail, checkpoints=checkpoints)
            number, offset, digest, data = keys.unpack_id(key), -1, NOTHING, b""
        if chain is None or chain.number != number:
            if chain is not None:
                yield ended(chain)
            chain = Chain(number)
            chain.stray = not told.has_transcript(number)
        if looked < len(scan.falsified):
            damaged.update(keys.unpack_id(key) for _, key in scan.falsified[looked:])
            looked = len(scan.falsified)
        chain.broken |= offset < 0 or number in damaged or chain.stray
        if chain.broken:
            continue
        if detail := chain.fault(offset, digest, data):
            chain.broken = True
            scan.problem("piece", "piece", thing, detail, checkpoints=hit(scan, "piece", key))
            continue
        marked = marks.get(number, {}).pop(chain.length, set())
        wrong.update(Mark(number, chain.length, other) for other in marked - {chain.hash})
    if chain is not None:
        yield ended(chain)
