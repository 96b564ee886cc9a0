"""Storing the conversation's files as they grow: only what is new of them is read and written.

A file is taken for what is stored of it, grown, as long as that is still its beginning. Of a small
file, and of one that is another than at the last time, all of that is compared; of a long one
whose end has grown, the last bytes. What is not the same goes on as another transcript: marks of
checkpoints stay what they were.

Threading: for the threads that an `Engine` is for; whoever uses a `Transcripts` holds the lock of
the sessions (registry.py).
"""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec
from blake3 import blake3

from cowfs.agents.base import Source
from cowfs.errors import DamagedRecordError, StoreFullError, StoreUnwritableError
from cowfs.format import keys, records
from cowfs.format.sessions import (
    LINES,
    NOTHING,
    PIECE_BYTES,
    TAIL_BYTES,
    Mark,
    SessionRecord,
    TranscriptRecord,
    chained,
    is_possible_name,
    pack_piece,
    piece_head,
    piece_key,
    piece_parts,
    session_key,
    storable,
)
from cowfs.service.engine import Engine, commit
from cowfs.service.sessions.reading import transcript
from cowfs.store.snapshot import Reader
from cowfs.volume.posix import now

MOST_BYTES = 64 << 20
"""What is taken of one file at a time; what is left of one that grows comes at the next time. A
line is not cut, but for one that is longer than this."""
_COMPARED = 4 << 20
"""Up to so many stored bytes are compared whenever a file has changed: some milliseconds."""
_BATCH_BYTES = 16 << 20
"""What waits in memory to be committed."""
_TRIES = 3
"""To read a file that is replaced as a whole while nobody changes it."""

_Row = tuple[str, bytes, bytes]
_Seen = tuple[int, int, int, int, int]


class _UnreadableError(Exception):
    """Why a file was left as it is stored."""


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it is stored, or will be when the next group is committed.

    whole: hash of all its bytes, made here; None: it was stored by an earlier life, and not
    compared since. seen: what the file looked like when it was last read. settled: it looked the
    same a time before that, and the tick of the clock in which it was changed was over: a change
    since would show.
    """

    number: int
    record: TranscriptRecord
    whole: blake3 | None = None
    seen: _Seen | None = None
    settled: bool = False

    @property
    def mark(self) -> Mark:
        return Mark(self.number, self.record.length, self.record.hash)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Captured:
    """How far the files of a session are stored. While it lives nobody drops what it marks: keep it
    until the checkpoint that has its marks is durable.

    missing: what could not be read, in words. complete: whether all that was there is stored.
    """

    marks: tuple[Mark, ...] = ()
    missing: tuple[str, ...] = ()
    complete: bool = True


class Transcripts:
    """The files of conversations, as far as they are stored."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        with Reader(engine.volume.store) as reader:
            last = reader.last_key("transcript"), reader.last_key("piece")
        self._last = max(keys.unpack_id(key or bytes(8)) for key in last)
        self._known: dict[str, dict[str, _File]] = {}
        self._held: weakref.WeakSet[Captured] = weakref.WeakSet()

    def forget(self, session: str) -> None:
        """Its files need not be kept in mind."""
        self._known.pop(session, None)

    def held(self) -> set[int]:
        """Transcripts that somebody is about to make a checkpoint with."""
        return {mark.transcript for captured in list(self._held) for mark in captured.marks}

    def capture(
        self, session: SessionRecord, sources: Iterable[Source]
    ) -> tuple[SessionRecord, Captured]:
        """Store what is new of the files, and the session's record, which has their numbers then;
        as parts of the next transaction group. In a store without room nothing new is taken."""
        run = _Run(self, session)
        for source in sources:
            run.follow(source)
        captured = run.end()
        self._held.add(captured)
        return run.session, captured

    # -- for a run ------------------------------------------------------------------------------

    def of(self, session: SessionRecord) -> dict[str, _File]:
        """The files of a session by name. Raises StoreFullError, StoreUnwritableError."""
        found = self._known.get(session.id)
        if found is None:
            commit(self._engine)  # what an earlier event stored of it, before it was forgotten
            found = self._known[session.id] = {}
            with Reader(self._engine.volume.store) as reader:
                for number in session.files:
                    try:
                        record = transcript(reader, number)
                    except DamagedRecordError:
                        continue  # it is stored anew; `verify` tells of the other
                    if record is not None:
                        found[record.name] = _File(number, record)
        return found

    def put(self, session: SessionRecord, files: dict[str, _File], rows: list[_Row]) -> None:
        """Have a session, its files as they are now, and new pieces in the next group."""
        rows.append(("session", session_key(session.id), records.encode(session)))

        def enter() -> None:
            for table, key, value in rows:
                self._engine.volume.extra.put(table, key, value)

        self._engine.call(enter)
        self._known[session.id] = files

    def commit(self) -> None:
        """Raises StoreFullError, StoreUnwritableError."""
        commit(self._engine)

    @property
    def refuses(self) -> str:
        """Why nothing new may be stored, "" when it may: it would only pile up in memory."""
        writer = self._engine.volume.writer
        if writer.full:
            return "the store is full"
        return "the store cannot be written" if writer.failure is not None else ""

    def take_number(self) -> int:
        self._last += 1
        return self._last

    def is_stored(self, file: _File, fd: int) -> blake3 | None:
        """Whether a file begins with all that is stored of it, compared piece by piece: the hash of
        that, None when it does not."""
        whole, offset, digest = blake3(), 0, NOTHING
        with Reader(self._engine.volume.store) as reader:
            try:
                for key, value in reader.scan("piece", keys.pack_id(file.number)):
                    length, claimed = piece_head(value)
                    data = os.pread(fd, length, offset)
                    digest = chained(digest, data)
                    if digest != claimed or piece_parts(key) != (file.number, offset):
                        return None
                    whole.update(data)
                    offset += length
            except DamagedRecordError:
                return None
        return whole if (offset, digest) == (file.record.length, file.record.hash) else None


class _Run:
    """One look at all the files of a session. What it finds counts when it is put."""

    def __init__(self, store: Transcripts, session: SessionRecord) -> None:
        self.session = session
        self._store = store
        self._files: dict[str, _File] = {}
        self._rows: list[_Row] = []
        self._size = 0
        self._missing: list[str] = []
        self._looked: set[str] = set()
        self._refused = store.refuses
        self._loaded = False
        try:
            self._files = dict(store.of(session))
            self._loaded = True
        except (StoreFullError, StoreUnwritableError) as error:
            self._refused = self._refused or str(error)
        if self._refused:
            self._missing.append(self._refused)

    def follow(self, source: Source) -> None:
        """Bring one file up to date, as far as that can be."""
        if self._refused:
            return
        try:
            self._follow(source)
        except FileNotFoundError:
            pass  # what is stored of it stays
        except (OSError, ValueError, _UnreadableError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self._missing.append(storable(f"{source.path}: {reason}"))

    def end(self) -> Captured:
        """Put what is left."""
        if self._loaded:
            self._put()
        else:
            self._store.put(self.session, {}, [])
            self._store.forget(self.session.id)
        marks = tuple(file.mark for file in self._files.values())
        return Captured(marks, tuple(self._missing), not self._missing)

    def _put(self) -> None:
        numbers = tuple(file.number for file in self._files.values())
        self.session = msgspec.structs.replace(self.session, files=numbers)
        self._store.put(self.session, dict(self._files), self._rows)
        self._rows, self._size = [], 0

    def _follow(self, source: Source) -> None:
        if not is_possible_name(source.name) or source.name in self._looked:
            raise _UnreadableError("a file of a conversation cannot have this name")
        self._looked.add(source.name)
        fd = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            read = self._read_lines if source.kind == LINES else self._read_whole
            self._enter(source, *read(source, fd))
        finally:
            os.close(fd)

    def _enter(self, source: Source, file: _File, rows: list[_Row]) -> None:
        """Have a file as it was read; one of which nothing is stored (yet) is left out."""
        known = self._files.get(source.name)
        if not file.record.length:
            self._files.pop(source.name, None)
            return
        self._files[source.name] = file
        if known is None or (file.number, file.record) != (known.number, known.record):
            self._add([*rows, _row(file)])

    def _add(self, rows: list[_Row]) -> None:
        self._rows += rows
        self._size += sum(len(value) for _, _, value in rows)
        if self._size > _BATCH_BYTES:
            self._put()
            try:
                self._store.commit()
            except (StoreFullError, StoreUnwritableError) as error:  # the group stays queued
                self._refused = str(error)
                self._missing.append(self._refused)

    # -- what is stored already -----------------------------------------------------------------

    def _begun(self, source: Source, fd: int, status: os.stat_result) -> _File:
        """What is stored of a file, as far as that is its beginning; else nothing, as another
        transcript."""
        path, look = os.fsencode(source.path), _look(status)
        over = now() > status.st_ctime_ns  # before it is compared
        file = self._files.get(source.name)
        if file is not None and (found := self._still(file, source, fd, status)) is not None:
            if found.record.path != path:
                found = replace(found, record=msgspec.structs.replace(found.record, path=path))
            return replace(found, seen=look, settled=over and file.seen == look)
        empty = TranscriptRecord(self.session.id, source.name, path, source.kind)
        return _File(self._store.take_number(), empty, blake3(), look)

    def _still(self, file: _File, source: Source, fd: int, status: os.stat_result) -> _File | None:
        record, size, seen = file.record, status.st_size, file.seen
        if record.kind != source.kind or size < record.length:
            return None
        if source.kind != LINES and size != record.length:
            return None
        if file.settled and seen == _look(status):
            return file
        if file.whole is None:
            whole = self._store.is_stored(file, fd)
            return replace(file, whole=whole) if whole is not None else None
        same = seen is not None and seen[:2] == (status.st_dev, status.st_ino)
        if source.kind == LINES and same and record.length > _COMPARED:
            tail = os.pread(fd, len(record.tail), record.length - len(record.tail))
            return file if tail == record.tail else None
        return file if _hash(fd, record.length) == file.whole.digest() else None

    # -- what is new ----------------------------------------------------------------------------

    def _read_whole(self, source: Source, fd: int) -> tuple[_File, list[_Row]]:
        """All of a file; no pieces if that is stored."""
        for _ in range(_TRIES):
            status = _regular(fd)
            if status.st_size > MOST_BYTES:
                raise _UnreadableError(f"it is larger than {MOST_BYTES >> 20} MiB")
            file, rows = self._begun(source, fd, status), list[_Row]()
            while (left := status.st_size - file.record.length) > 0:
                data = os.pread(fd, min(PIECE_BYTES, left), file.record.length)
                if not data:
                    break
                file = _longer(file, data, rows)
            if _look(os.fstat(fd)) == _look(status):
                return file, rows
        raise _UnreadableError("it changed while it was read")

    def _read_lines(self, source: Source, fd: int) -> tuple[_File, list[_Row]]:
        """The whole lines that are new."""
        status = _regular(fd)
        file, rows = self._begun(source, fd, status), list[_Row]()
        end = min(status.st_size, file.record.length + MOST_BYTES)
        rest = bytearray()
        while (at := file.record.length + len(rest)) < end:
            data = os.pread(fd, min(PIECE_BYTES, end - at), at)
            if not data:
                break
            cut = data.rfind(b"\n") + 1
            rest += data[:cut] if cut else data
            if cut or len(rest) >= MOST_BYTES:  # else no line would ever end there
                file = _longer(file, bytes(rest), rows)
                rest = bytearray(data[cut:] if cut else b"")
        if status.st_size > end:
            left = status.st_size - file.record.length
            detail = f"{source.path}: {left} bytes were left for the next time"
            self._missing.append(storable(detail))
        return file, rows


def _regular(fd: int) -> os.stat_result:
    """What there is of a regular file. Raises _UnreadableError."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise _UnreadableError("it is no regular file")
    return status


def _look(status: os.stat_result) -> _Seen:
    """What tells a file from another one and from itself before a change."""
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _longer(file: _File, data: bytes, rows: list[_Row]) -> _File:
    """A file with more bytes at its end, and the pieces for them."""
    record = file.record
    offset, digest, tail = record.length, record.hash, record.tail
    whole = file.whole.copy() if file.whole is not None else blake3()
    for at in range(0, len(data), PIECE_BYTES):
        part = data[at : at + PIECE_BYTES]
        digest = chained(digest, part)
        rows.append(("piece", piece_key(file.number, offset), pack_piece(digest, part)))
        offset += len(part)
        tail = (tail + part)[-TAIL_BYTES:]
        whole.update(part)
    record = msgspec.structs.replace(record, length=offset, hash=digest, tail=tail)
    return replace(file, record=record, whole=whole)


def _row(file: _File) -> _Row:
    return "transcript", keys.pack_id(file.number), records.encode(file.record)


def _hash(fd: int, length: int) -> bytes:
    """Of the first bytes of a file."""
    whole = blake3()
    for offset in range(0, length, PIECE_BYTES):
        whole.update(os.pread(fd, min(PIECE_BYTES, length - offset), offset))
    return whole.digest()
