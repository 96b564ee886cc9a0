"""The agent's own file of a conversation, compared with what is stored of it.

Threading: pure functions on a reader of the calling thread.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from cowfs.agents.base import MAIN
from cowfs.errors import DamagedRecordError
from cowfs.format.sessions import LINES, Mark, SessionRecord, TranscriptRecord
from cowfs.service.sessions import reading
from cowfs.store.snapshot import Reader

_PART = 1 << 20


def marks_of(reader: Reader, session: SessionRecord) -> tuple[Mark, ...]:
    """All that is stored of a session's conversation, as far as it can be read."""
    found = []
    for number in session.files:
        try:
            record = reading.transcript(reader, number)
        except DamagedRecordError:
            continue
        if record is not None:
            found.append(Mark(number, record.length, record.hash))
    return tuple(found)


def main_of(reader: Reader, session: SessionRecord) -> tuple[int, TranscriptRecord] | None:
    """(number, record) of the conversation's own file, as far as it is stored."""
    for number in session.files:
        try:
            record = reading.transcript(reader, number)
        except DamagedRecordError:
            continue
        if record is not None and record.name == MAIN:
            return number, record
    return None


@dataclass(frozen=True, slots=True)
class Original:
    """The agent's own file. fault: why the agent cannot go on with it, "" if it can. begins: it is
    what is stored of it, or that and more."""

    fault: str = ""
    begins: bool = True


def look_at_original(reader: Reader, session: SessionRecord) -> Original:
    """The file has to begin with all that is stored of it, and to end with a whole line. A crash of
    the machine may leave less, or zeros."""
    if not session.transcript:
        return Original(begins=False)
    stored = main_of(reader, session)
    name = os.fsdecode(session.transcript)
    try:
        fd = os.open(session.transcript, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return Original(f"{name} is gone", begins=False)
    except OSError as error:
        return Original(f"{name} cannot be read: {error.strerror}", begins=False)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return Original(f"{name} is no file", begins=False)
        if stored is None or stored[1].kind != LINES:
            return Original()
        number, record = stored
        try:
            data = reading.stored(reader, Mark(number, record.length, record.hash))
        except DamagedRecordError:
            data = b""  # what cannot be read is no reason to give the file up
        if not _begins_with(fd, data):
            return Original(f"{name} does not begin with what is stored of it", begins=False)
        fault = _fault_after(fd, data)
        return Original(f"{name} {fault}" if fault else "")
    except OSError as error:
        return Original(f"{name} cannot be read: {error.strerror}", begins=False)
    finally:
        os.close(fd)


def _begins_with(fd: int, stored: bytes) -> bool:
    at = 0
    while at < len(stored):
        part = os.pread(fd, min(_PART, len(stored) - at), at)
        if not part or part != stored[at : at + len(part)]:
            return False
        at += len(part)
    return True


def _fault_after(fd: int, stored: bytes) -> str:
    """What is wrong with what a file has after its beginning, and that grows by lines."""
    at, last = len(stored), stored[-1:]
    while part := os.pread(fd, _PART, at):
        if b"\0" in part:
            return "has zeros in it, as a crash of the machine leaves them"
        at, last = at + len(part), part[-1:]
    return "" if last in (b"\n", b"") else "ends in the middle of a line"
