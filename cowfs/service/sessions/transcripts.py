"""Storing the conversation's files as they grow: only what is new of them is read and written.

Threading: for the threads that an `Engine` is for; whoever uses a `Transcripts` holds the lock of
the sessions (registry.py).
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cowfs.agents.base import Source
from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.format.sessions import (
    LINES,
    PIECE_BYTES,
    TAIL_BYTES,
    Mark,
    SessionRecord,
    TranscriptRecord,
    chained,
    pack_piece,
    piece_key,
)
from cowfs.service.engine import Engine
from cowfs.service.sessions.reading import transcript
from cowfs.store.snapshot import Reader

log = logging.getLogger(__name__)

MOST_BYTES = 256 << 20
"""What is taken of one file at a time; what is left comes at the next time."""


@dataclass(frozen=True, slots=True)
class _Known:
    number: int
    record: TranscriptRecord

    @property
    def mark(self) -> Mark:
        return Mark(self.number, self.record.length, self.record.hash)


@dataclass(frozen=True, slots=True)
class Captured:
    """marks: how far each file is stored. numbers: of the transcripts, for the session's record.
    missing: what could not be read, in words."""

    marks: tuple[Mark, ...]
    numbers: tuple[int, ...]
    missing: tuple[str, ...] = ()


class Transcripts:
    """The files of conversations, as far as they are stored."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        with Reader(engine.volume.store) as reader:
            self._last = keys.unpack_id(reader.last_key("transcript") or bytes(8))
        self._known: dict[str, dict[str, _Known]] = {}

    def of(self, session: SessionRecord) -> dict[str, _Known]:
        """The files of a session by name, as they are stored now."""
        found = self._known.get(session.id)
        if found is None:
            found = self._known[session.id] = {}
            with Reader(self._engine.volume.store) as reader:
                for number in session.files:
                    try:
                        record = transcript(reader, number)
                    except DamagedRecordError:
                        continue  # it is stored anew; `verify` tells of the other
                    if record is not None:
                        found[record.name] = _Known(number, record)
        return found

    def forget(self, session: str) -> None:
        """It has ended: its files need not be kept in mind."""
        self._known.pop(session, None)

    def capture(self, session: SessionRecord, sources: Iterable[Source]) -> Captured:
        """Store what is new of the files; it is part of the next transaction group."""
        known = self.of(session)
        missing = []
        for source in sources:
            try:
                self._follow(session.id, known, source)
            except OSError as error:
                if not isinstance(error, FileNotFoundError):
                    missing.append(f"{source.path}: {error.strerror}")
        files = known.values()
        return Captured(
            tuple(item.mark for item in files),
            tuple(item.number for item in files),
            tuple(missing),
        )

    def _follow(self, session: str, known: dict[str, _Known], source: Source) -> None:
        """Bring one file up to date. Raises OSError."""
        fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "it is no regular file")
            path = os.fsencode(source.path)
            current = known.get(source.name)
            if current is None or not _goes_on(current.record, source, status.st_size, fd):
                empty = TranscriptRecord(session, source.name, path, source.kind)
                current = _Known(self._take(), empty)
            elif current.record.path != path:
                current = replace(current, record=_moved(current.record, path))
            known[source.name] = self._read_on(fd, current, status.st_size)
        finally:
            os.close(fd)

    def _take(self) -> int:
        self._last += 1
        return self._last

    def _read_on(self, fd: int, current: _Known, size: int) -> _Known:
        record, number = current.record, current.number
        offset, digest, tail = record.length, record.hash, record.tail
        end = min(size, offset + MOST_BYTES)
        pieces: list[tuple[bytes, bytes]] = []
        rest = b""
        while offset + len(rest) < end:
            data = os.pread(fd, min(PIECE_BYTES, end - offset - len(rest)), offset + len(rest))
            if not data:
                break
            rest += data
            whole = rest.rfind(b"\n") + 1 if record.kind == LINES else len(rest)
            taken, rest = rest[:whole], rest[whole:]
            for at in range(0, len(taken), PIECE_BYTES):
                part = taken[at : at + PIECE_BYTES]
                digest = chained(digest, part)
                pieces.append((piece_key(number, offset), pack_piece(digest, part)))
                offset += len(part)
                tail = (tail + part)[-TAIL_BYTES:]
        fresh = TranscriptRecord(
            record.session, record.name, record.path, record.kind, offset, digest, tail
        )
        self._engine.call(lambda: self._put(number, fresh, pieces))
        return _Known(number, fresh)

    def _put(
        self, number: int, record: TranscriptRecord, pieces: list[tuple[bytes, bytes]]
    ) -> None:
        extra = self._engine.volume.extra
        for key, value in pieces:
            extra.put("piece", key, value)
        extra.put("transcript", keys.pack_id(number), records.encode(record))


def _moved(record: TranscriptRecord, path: bytes) -> TranscriptRecord:
    return TranscriptRecord(
        record.session,
        record.name,
        path,
        record.kind,
        record.length,
        record.hash,
        record.tail,
    )


def _goes_on(record: TranscriptRecord, source: Source, size: int, fd: int) -> bool:
    """Whether what is stored is still the beginning of a file: of one that is replaced as a whole,
    all of it."""
    if record.kind != source.kind or size < record.length:
        return False
    if source.kind != LINES and size != record.length:
        return False
    if source.kind == LINES or record.length <= TAIL_BYTES:
        return os.pread(fd, len(record.tail), record.length - len(record.tail)) == record.tail
    return _digest(fd, size) == record.hash


def _digest(fd: int, size: int) -> bytes:
    """The hash that the pieces of a file that is stored as a whole would have."""
    digest = bytes(32)
    for offset in range(0, size, PIECE_BYTES):
        digest = chained(digest, os.pread(fd, PIECE_BYTES, offset))
    return digest
