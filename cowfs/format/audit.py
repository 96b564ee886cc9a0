"""Values of the tables `process` and `audit` (docs/format.md, "Who did it").

Threading: pure functions and immutable records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

UNKNOWN = 0
"""Number of no process: nobody can say who it was."""
OUTSIDE = 1
"""Number of no process: whoever changed the base directory itself."""
FIRST = 2
"""The first number of a process."""

MADE = 1
WROTE = 2
REMOVED = 3
RENAMED = 4
LINKED = 5
ATTRIBUTES = 6
EXCHANGED = 7
RESTORED = 8
UNDONE = 9
REDONE = 10
CODES = range(MADE, REDONE + 1)

CUT = 1
"""Bit of `Operation.what`: the size was set, or a part was allocated or made a hole."""
MODE = 2
OWNER = 4
TIMES = 8
XATTR = 16
REPLACED = 32
"""A rename took the place of another thing."""


class ProcessRecord(msgspec.Struct, array_like=True, frozen=True):
    """A process that changed something, or whose descendant did.

    started: ns since 1970. command: its arguments, each ended by a NUL, secrets left out, cut.
    parent: number of the process that started it, UNKNOWN where the chain ends. session, tool: ids
    of the session of an agent that it belongs to (of a sub-agent its own) and of the call of a tool
    that started it. outside: it belongs to none, though one was going on.
    """

    pid: int
    started: int
    uid: int
    user: str
    name: str
    command: bytes
    parent: int = UNKNOWN
    session: str = ""
    tool: str = ""
    outside: bool = False


class Operation(msgspec.Struct, array_like=True, frozen=True):
    """What a process did to one thing, folded.

    after: ns since the record's time. kind: type (DT_*). directory, to_directory: places in the
    record's list; the second path is the new one of a rename, the older one of a link. count:
    requests. size: bytes written. what: bits, see above.
    """

    code: int
    after: int
    ino: int
    kind: int
    directory: int
    name: bytes
    to_directory: int = 0
    to_name: bytes = b""
    count: int = 1
    size: int = 0
    what: int = 0


class AuditRecord(msgspec.Struct, array_like=True, frozen=True):
    """What one process did in one transaction group. time: ns since 1970, of the first of it.
    detail: of a restore, an undo or a redo the id of its target."""

    epoch: int
    time: int
    process: int
    directories: tuple[bytes, ...]
    operations: tuple[Operation, ...]
    detail: str = ""

    def path(self, operation: Operation) -> bytes:
        """Of one of its operations; without a name that of the directory."""
        return self._join(operation.directory, operation.name)

    def second_path(self, operation: Operation) -> bytes | None:
        """None when it has none."""
        to_name = operation.to_name
        return self._join(operation.to_directory, to_name) if to_name else None

    def _join(self, place: int, name: bytes) -> bytes:
        """A place that is damaged is the top."""
        directory = self.directories[place] if 0 <= place < len(self.directories) else b""
        return directory + b"/" + name if directory and name else directory or name


class AuditHead(msgspec.Struct, array_like=True, frozen=True):
    """The first fields of an AuditRecord, for who looks for some among many."""

    epoch: int
    time: int
    process: int
    directories: tuple[bytes, ...]


_encoder = msgspec.msgpack.Encoder()


def encode_audit(
    epoch: int,
    time: int,
    process: int,
    directories: Sequence[bytes],
    operations: Sequence[Sequence[Any]],
    detail: str = "",
) -> bytes:
    """An AuditRecord as msgpack; each operation is the sequence of its fields."""
    return _encoder.encode((epoch, time, process, directories, operations, detail))
