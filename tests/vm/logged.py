"""The writes and flushes that QEMU recorded of a disk, and the reports that were written among
them.

The format is that of the kernel's dm-log-writes (Documentation/admin-guide/device-mapper/
log-writes.rst), as QEMU's blklogwrites writes it: numbers little-endian; first a sector with
magic, version, number of entries and sector size; then for each entry a sector with its place,
length in sectors, flags and length of a mark, followed by its data. QEMU writes the number of
entries only at its end, so it is not looked at.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.crash.recorder import Entry
from tests.vm.trouble import VmError

MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
HEAD, ENTRY = struct.Struct("<QQQI"), struct.Struct("<QQQQ")


def read_log(path: Path, marks_at: int) -> Iterator[Entry]:
    """Writes, syncs and facts (tests/crash/recorder.py); what is written at the byte `marks_at` of
    the disk is a fact. An entry that was cut off ends the log. Raises VmError for what this disk
    has never: a log of another kind, writes that are flushed by themselves, discards."""
    with open(path, "rb") as file:
        magic, _version, _entries, sector = HEAD.unpack(file.read(HEAD.size))
        if magic != MAGIC:
            raise VmError(f"{path} is no log of writes")
        at, end = sector, path.stat().st_size
        while at + sector <= end:
            file.seek(at)
            place, length, flags, _mark = ENTRY.unpack(file.read(ENTRY.size))
            if flags & ~FLUSH:
                raise VmError(f"{path}: an entry with the flags {flags}")
            file.seek(at + sector)
            data = file.read(length * sector)
            if len(data) < length * sector:
                return
            at += sector + len(data)
            if flags & FLUSH:
                yield Entry(b"S", 0, b"")
            if data and place * sector == marks_at:
                yield Entry(b"F", 0, data.rstrip(b"\0"))
            elif data:
                yield Entry(b"W", place * sector, data)


def report_in(fact: bytes) -> list[Any]:
    """What a fact reports: `tests.vm.agent` writes [number, word, ...]."""
    found: list[Any] = json.loads(fact)
    return found[1:]
