"""What the store says of sessions, their conversations and the context of checkpoints. A store that
no program has opened for writing since there are sessions has none.

Threading: pure functions on a reader of the calling thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from cowfs.agents.base import MAIN
from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.sessions import (
    ACTIVE,
    NOTHING,
    ContextRecord,
    Mark,
    SessionRecord,
    TranscriptRecord,
    chained,
    is_possible_id,
    is_possible_name,
    is_possible_number,
    piece_parts,
    session_key,
    unpack_context,
    unpack_piece,
)
from cowfs.service.sessions.liveness import is_running
from cowfs.store.snapshot import Reader

INTERRUPTED = "interrupted"


def sessions(reader: Reader) -> Iterator[SessionRecord]:
    """All of them by id, sub-agents after the session that they belong to, but not always at once.
    Raises DamagedRecordError."""
    if "session" in reader.store.tables:
        for _, value in reader.scan("session"):
            yield records.decode(value, SessionRecord)


def subagents(reader: Reader, name: str) -> Iterator[SessionRecord]:
    """Those of a session. Raises DamagedRecordError."""
    if "session" in reader.store.tables:
        for _, value in reader.scan("session", session_key(name + "/")):
            yield records.decode(value, SessionRecord)


def _get(reader: Reader, table: str, key: bytes) -> bytes | None:
    return reader.get(table, key) if table in reader.store.tables else None


def session(reader: Reader, name: str) -> SessionRecord | None:
    """One, by its id. Raises DamagedRecordError."""
    value = _get(reader, "session", session_key(name)) if is_possible_id(name) else None
    return records.decode(value, SessionRecord) if value is not None else None


def state(record: SessionRecord, above: SessionRecord | None = None) -> str:
    """`active`, `ended`, or `interrupted`: it never ended, and its process is gone. above: the
    session of a sub-agent, whose process counts."""
    if record.state != ACTIVE:
        return record.state
    return ACTIVE if is_running(above or record) else INTERRUPTED


def context(reader: Reader, checkpoint: str) -> ContextRecord | None:
    """What a checkpoint keeps besides the files; None when it keeps nothing. Raises
    DamagedRecordError."""
    value = _get(reader, "context", checkpoint.encode())
    return unpack_context(value) if value is not None else None


def transcript(reader: Reader, number: int) -> TranscriptRecord | None:
    """What is stored of a file of a conversation. Raises DamagedRecordError."""
    if not is_possible_number(number):
        return None
    value = _get(reader, "transcript", keys.pack_id(number))
    return records.decode(value, TranscriptRecord) if value is not None else None


def stored(reader: Reader, mark: Mark) -> bytes:
    """The bytes of a file as they were at a checkpoint, compared with their hash. Raises
    DamagedRecordError."""
    parts, offset, digest = [], 0, NOTHING
    pieces = "piece" in reader.store.tables
    for key, value in reader.scan("piece", keys.pack_id(mark.transcript)) if pieces else ():
        if offset >= mark.length:
            break
        number, at = piece_parts(key)
        claimed, data = unpack_piece(value)
        digest = chained(digest, data)
        if (number, at) != (mark.transcript, offset) or digest != claimed:
            break
        parts.append(data)
        offset += len(data)
    if offset != mark.length or digest != mark.hash:
        detail = f"the conversation's transcript {mark.transcript} is not what it was"
        raise DamagedRecordError(what="piece", detail=detail)
    return b"".join(parts)


def conversation(reader: Reader, found: ContextRecord) -> dict[str, bytes]:
    """The files of the conversation as they were at a checkpoint: name to bytes; empty when it
    keeps none. Raises DamagedRecordError."""
    files = {}
    for mark in found.marks:
        record = transcript(reader, mark.transcript)
        if record is None:
            detail = f"there is no transcript {mark.transcript}"
            raise DamagedRecordError(what="transcript", detail=detail)
        if not is_possible_name(record.name):
            detail = f"a file cannot be named {record.name!r}"
            raise DamagedRecordError(what="transcript", detail=detail)
        files[record.name] = stored(reader, mark)
    return files


def transcript_path(reader: Reader, found: ContextRecord) -> str:
    """Where the conversation of a checkpoint lay, "" when it keeps none."""
    for mark in found.marks:
        record = transcript(reader, mark.transcript)
        if record is not None and record.name == MAIN:
            return os.fsdecode(record.path)
    return ""
