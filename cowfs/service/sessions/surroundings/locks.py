"""File locks, as the kernel tells of them.

Each descriptor says which locks are held by it (proc_pid_fdinfo(5)), in rows like those of
/proc/locks. That file itself takes the kernel some milliseconds: it stops all locking for it.

Threading: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

KINDS = ("POSIX", "FLOCK", "OFDLCK", "LEASE")
MODES = ("READ", "WRITE")


class Lock(NamedTuple):
    """A lock on a file; see `FileLock`. pid is -1 for one of an open file description."""

    kind: str
    mode: str
    pid: int
    ino: int
    start: int
    end: int


def parse(rows: Iterable[bytes], device: str) -> list[Lock]:
    """Rows as in proc_locks(5); of one device."""
    major, _, minor = device.partition(":")
    wanted = f"{int(major):02x}:{int(minor):02x}:"
    found = []
    for row in rows:
        fields = row.decode("ascii", "replace").split()
        if len(fields) < 8 or fields[1] == "->" or not fields[5].startswith(wanted):
            continue
        kind, mode = fields[1], fields[3]
        if kind not in KINDS or mode not in MODES:
            continue
        end = -1 if fields[7] == "EOF" else int(fields[7])
        ino = int(fields[5][len(wanted) :])
        found.append(Lock(kind, mode, int(fields[4]), ino, int(fields[6]), end))
    return found
