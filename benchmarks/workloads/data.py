"""One large file, and a database: the file's bytes rather than names.

The file is written and read from here, not with fio, so that what comes back is compared with what
was written. :mod:`benchmarks.workloads.fio` has fio's own patterns.
"""

from __future__ import annotations

import functools
import os
import random
import sqlite3
from pathlib import Path

from benchmarks.inputs.materials import Inputs
from benchmarks.system import BenchError

MIB = 1 << 20
BLOCK = 4096
RANDOM_SHARE = 4
"""Random writes change one block in this many of the file that ``seq-write`` made."""
TRANSACTIONS = 1000


@functools.cache
def _chunk(number: int) -> bytes:
    """One MiB of the data file: no two blocks are equal, and nothing compresses."""
    return random.Random(number).randbytes(MIB)


def load_data(inputs: Inputs) -> None:
    """Make the data file's content in memory, so that making it is never timed."""
    for number in range(inputs.data_mib):
        _chunk(number)


def sequential_write(directory: Path, inputs: Inputs) -> None:
    """Write ``data`` in pieces of 1 MiB, then fsync."""
    with open(directory / "data", "wb", buffering=0) as file:
        for number in range(inputs.data_mib):
            file.write(_chunk(number))
        os.fsync(file.fileno())


def sequential_read(directory: Path, inputs: Inputs) -> None:
    """Read ``data`` in pieces of 1 MiB; the last one is compared with what was written."""
    buffer = bytearray(MIB)
    total = 0
    with open(directory / "data", "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    if total != inputs.data_mib * MIB or buffer != _chunk(inputs.data_mib - 1):
        raise BenchError("the data file does not read back as written")


def random_write(directory: Path, inputs: Inputs) -> None:
    """Overwrite one block of 4 KiB in four of ``data``, in random order, then fsync."""
    blocks = range(0, inputs.data_mib * MIB // BLOCK, RANDOM_SHARE)
    order = random.Random(0).sample(blocks, len(blocks))
    payload = _chunk(-1)
    with open(directory / "data", "r+b", buffering=0) as file:
        descriptor = file.fileno()
        for turn, block in enumerate(order):
            start = turn * BLOCK % MIB
            os.pwrite(descriptor, payload[start : start + BLOCK], block * BLOCK)
        os.fsync(descriptor)


def sqlite(directory: Path, inputs: Inputs) -> None:
    """1,000 durable transactions of one row each, with the default (delete) journal."""
    database = sqlite3.connect(directory / "bench.sqlite", isolation_level=None)
    try:
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE event (id INTEGER PRIMARY KEY, text TEXT)")
        for number in range(TRANSACTIONS):
            database.execute("INSERT INTO event (text) VALUES (?)", (f"event {number}",))
        (count,) = database.execute("SELECT count(*) FROM event").fetchone()
    except sqlite3.Error as error:
        raise BenchError(f"SQLite: {error}") from error
    finally:
        database.close()
    if count != TRANSACTIONS:
        raise BenchError(f"{count} of {TRANSACTIONS} transactions are in the database")
