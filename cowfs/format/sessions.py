"""Values of the tables `session`, `transcript`, `piece` and `context` (docs/format.md, "Sessions").

Threading: pure functions and immutable records.
"""

from __future__ import annotations

import struct

import blake3
import msgspec
import zstandard

from cowfs.errors import DamagedRecordError
from cowfs.format import records

ACTIVE = "active"
ENDED = "ended"
STATES = (ACTIVE, ENDED)
"""What the store says. A session that is active and whose process is gone was *interrupted*."""

LONGEST_ID = 200
"""Bytes of a session's id in UTF-8: a key of LMDB has at most 511."""
LONGEST_NAME = 1000
"""Bytes of the name of a file of a conversation."""

LINES = "lines"
"""A file that only grows, by whole lines."""
WHOLE = "whole"
"""A file that is replaced as a whole."""
KINDS = (LINES, WHOLE)

NOTHING = bytes(32)
"""The hash of no bytes at all, from which a chain of pieces begins."""
PIECE_BYTES = 1 << 20
"""The most bytes that a piece holds."""
TAIL_BYTES = 256
"""Of what is stored of a file, so many last bytes are kept to see whether it is still the same."""

_KEY = struct.Struct(">QQ")
_PIECE = struct.Struct(">I32s")
_LEVEL = 3


class SessionRecord(msgspec.Struct, array_like=True, frozen=True):
    """A run of an agent, or of one of its sub-agents.

    id: the agent's own; of a sub-agent that of its session, "/", its own. agent: name of the
    adapter (cowfs/agents), or of a program that only says who it is. state: see STATES.
    started, last, ended: ns since 1970; last: when it was heard of; ended: 0 while it is active.
    reason: why it ended, in the agent's words. parent: id of the session that started it, "".
    kind: type of a sub-agent. uid, user: who runs it. pid: its process, 0 when nobody said;
    born: that process's start in clock ticks since the machine started, boot: the machine's boot
    id (proc_sys_kernel(5)); so a pid that is used again is not taken for it.
    cwd: working directory. transcript: path of the conversation's file. title: what the agent calls
    it. prompt, prompt_id: the last one. version: of the agent's program. origin: id of the session
    that it is a copy of, "". files: numbers of the transcripts that are going on.
    """

    id: str
    agent: str
    state: str = ACTIVE
    started: int = 0
    last: int = 0
    ended: int = 0
    reason: str = ""
    parent: str = ""
    kind: str = ""
    uid: int = 0
    user: str = ""
    pid: int = 0
    born: int = 0
    boot: str = ""
    cwd: bytes = b""
    transcript: bytes = b""
    title: str = ""
    prompt: str = ""
    prompt_id: str = ""
    version: str = ""
    origin: str = ""
    files: tuple[int, ...] = ()


class TranscriptRecord(msgspec.Struct, array_like=True, frozen=True):
    """What is stored of one file of a conversation.

    session: id of the session. name: which of its files: "main", or the path that it has beside
    that one. path: where it lies. kind: see KINDS. length: bytes that are stored. hash: of the last
    piece. tail: its last bytes. A file that was replaced or cut off goes on as another transcript.
    """

    session: str
    name: str
    path: bytes
    kind: str
    length: int = 0
    hash: bytes = NOTHING
    tail: bytes = b""


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """How far a file of the conversation was at a checkpoint: the first `length` bytes of a
    transcript, which end with a piece of that hash."""

    transcript: int
    length: int
    hash: bytes


class ToolCall(msgspec.Struct, array_like=True, frozen=True):
    """What an agent asked a tool to do. text: its command line, or the path that it is about."""

    id: str = ""
    name: str = ""
    text: str = ""


class RunningProcess(msgspec.Struct, array_like=True, frozen=True):
    """A process of a session's tree. command: arguments, each ended by a NUL, secrets left out.
    started: ns since 1970."""

    pid: int
    parent: int
    started: int
    command: bytes
    cwd: bytes = b""


class OpenFile(msgspec.Struct, array_like=True, frozen=True):
    """A file of the workspace that a process had open. flags: of open(2). path: relative to the
    top, b"" when it had no name any more."""

    pid: int
    fd: int
    ino: int
    path: bytes
    offset: int
    flags: int


class ListeningPort(msgspec.Struct, array_like=True, frozen=True):
    """A TCP or UDP socket that waited for others. protocol: tcp, tcp6, udp, udp6."""

    protocol: str
    address: str
    port: int
    pid: int


class FileLock(msgspec.Struct, array_like=True, frozen=True):
    """A lock on a file of the workspace. kind: POSIX, FLOCK, OFDLCK or LEASE; mode: READ or WRITE;
    start, end: bytes, end -1 for the end of the file (proc_locks(5))."""

    pid: int
    ino: int
    path: bytes
    kind: str
    mode: str
    start: int
    end: int


class ContextRecord(msgspec.Struct, array_like=True, frozen=True):
    """What a checkpoint knows besides the files.

    session: id of the session (of a sub-agent: its own) that it belongs to, "" for none.
    event: which one it was made at (cowfs/agents/events.py), "" when somebody asked for it.
    prompt, prompt_id: what the user asked, of the turn that was under way or about to begin.
    tool: the call that was about to begin. cwd: working directory. marks: the conversation.
    leaf: the agent's name for the last entry of the conversation, where that is not the last one
    of the marks. complete: whether the conversation had all that belongs to it. background: tasks
    of the agent that were still running. environment: sorted names and values, without secrets;
    hidden: names of variables that were left out. missing: what could not be found out, in words.
    """

    session: str = ""
    event: str = ""
    prompt: str = ""
    prompt_id: str = ""
    tool: ToolCall = ToolCall()
    cwd: bytes = b""
    marks: tuple[Mark, ...] = ()
    complete: bool = True
    background: int = 0
    environment: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    processes: tuple[RunningProcess, ...] = ()
    files: tuple[OpenFile, ...] = ()
    ports: tuple[ListeningPort, ...] = ()
    locks: tuple[FileLock, ...] = ()
    missing: tuple[str, ...] = ()
    leaf: str = ""


def session_key(session: str) -> bytes:
    """Key of the table `session`. Sub-agents follow the session that started them."""
    return session.encode()


def is_possible_id(session: str) -> bool:
    """Whether a text can be the id of a session."""
    return 0 < len(session.encode("utf-8", "replace")) <= LONGEST_ID and session.isprintable()


def is_possible_name(name: str) -> bool:
    """Whether a text can be the name of a file of a conversation: a relative path that stays below
    where it begins."""
    if "\0" in name or len(name.encode("utf-8", "replace")) > LONGEST_NAME:
        return False
    return name == storable(name) and not {"", ".", ".."} & set(name.split("/"))


def is_possible_number(transcript: int) -> bool:
    """Whether a number can be that of a transcript."""
    return 0 < transcript < 1 << 64


def family(session: str) -> str:
    """The session that a sub-agent belongs to; of a session that itself."""
    return session.partition("/")[0]


def storable(text: str) -> str:
    """A text as a record can hold it: lone surrogates, which UTF-8 has not, become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def piece_key(transcript: int, offset: int) -> bytes:
    """Key of the table `piece`: the number of the transcript, where the piece begins in it."""
    return _KEY.pack(transcript, offset)


def piece_parts(key: bytes) -> tuple[int, int]:
    """(transcript, offset) of a key. Raises DamagedRecordError."""
    try:
        transcript, offset = _KEY.unpack(key)
    except struct.error as error:
        raise DamagedRecordError(what="key of a piece", detail=str(error)) from None
    return transcript, offset


def chained(before: bytes, data: bytes) -> bytes:
    """The hash of a piece: BLAKE3 of the hash of the piece before it and its own bytes."""
    return blake3.blake3(before + data).digest()


def pack_piece(digest: bytes, data: bytes) -> bytes:
    """The value of the table `piece`: length and hash, then a zstd frame."""
    return _PIECE.pack(len(data), digest) + zstandard.ZstdCompressor(_LEVEL).compress(data)


def piece_head(value: bytes) -> tuple[int, bytes]:
    """(length, hash) that a piece says it has. Raises DamagedRecordError."""
    try:
        length, digest = _PIECE.unpack_from(value)
    except struct.error as error:
        raise DamagedRecordError(what="piece", detail=str(error)) from None
    if not 0 < length <= PIECE_BYTES:
        raise DamagedRecordError(what="piece", detail=f"it says that it has {length} bytes")
    return length, digest


def unpack_piece(value: bytes) -> tuple[bytes, bytes]:
    """(hash, bytes) of a piece; whoever reads it compares the hash with the chain. Raises
    DamagedRecordError."""
    length, digest = piece_head(value)
    return digest, _decompressed(value[_PIECE.size :], "piece", length, length)


def _decompressed(frame: bytes, what: str, least: int, most: int) -> bytes:
    """What a zstd frame holds. A damaged one may claim to have petabytes, for which the
    decompressor would ask memory first. Raises DamagedRecordError."""
    try:
        if not least <= (size := zstandard.frame_content_size(frame)) <= most:
            raise DamagedRecordError(what=what, detail=f"its frame says that it has {size} bytes")
        return zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise DamagedRecordError(what=what, detail=str(error)) from None


MOST_CONTEXT = 16 << 20
"""Bytes of a context, before it is compressed."""


def pack_context(context: ContextRecord) -> bytes:
    """The value of the table `context`: a zstd frame with the record as msgpack. What was around is
    left out if it is too much."""
    raw = records.encode(context)
    if len(raw) > MOST_CONTEXT:
        missing = (*context.missing[:100], "what was around is too much to be kept")
        raw = records.encode(
            msgspec.structs.replace(
                context,
                environment=(),
                hidden=(),
                processes=(),
                files=(),
                ports=(),
                locks=(),
                missing=missing,
            )
        )
    return zstandard.ZstdCompressor(_LEVEL).compress(raw)


def unpack_context(value: bytes) -> ContextRecord:
    """Raises DamagedRecordError."""
    if value[:1] == b"\x28":  # else it was condensed, and is the array already
        value = _decompressed(value, "context", 1, MOST_CONTEXT)
    return records.decode(value, ContextRecord)
