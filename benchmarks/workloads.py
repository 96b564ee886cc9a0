"""The file workloads: functions that take a directory.

Each is a step of one sequence: ``untar`` leaves ``tree``, ``cp-a`` copies it to ``copy``, which
``rm-rf`` deletes; everything else reads ``tree``. Dropping caches for one target drops them for all
the others too, so the steps that take the caches as they were left come before the first cold one,
and every later one states what it needs (:class:`Cache`).
"""

from __future__ import annotations

import functools
import os
import random
import sqlite3
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.system import BenchError, Env, run_tool

MIB = 1 << 20
BLOCK = 4096
RANDOM_SHARE = 4
"""Random writes change one block in this many of the file that ``seq-write`` made."""
TRANSACTIONS = 1000
NEEDLE = "cowfs-benchmark-text-that-no-file-has"


class Cache(Enum):
    """What the kernel's caches hold when the clock starts."""

    AS_LEFT = "as left"
    """What the steps before left; these steps mostly write."""
    WARM = "warm"
    """The same step has just run once, not timed."""
    COLD = "cold"
    """Dropped, except for the tool's own program."""


@dataclass(frozen=True)
class Inputs:
    """What the workloads work on; the same for every target."""

    archive: Path
    """An uncompressed tar file of a project."""
    entries: int
    """How many members it has."""
    data_mib: int
    """Size in MiB of the file that is written and read as a whole."""
    env: Env
    """Environment of the tools."""


@dataclass(frozen=True)
class Workload:
    """One step: ``run(directory, inputs)`` is timed; it raises when the result is not right."""

    name: str
    title: str
    run: Callable[[Path, Inputs], None]
    cache: Cache = Cache.AS_LEFT
    needs: tuple[str, ...] = ()
    """Steps that must have run before in the same directory."""
    tool: str | None = None
    """The program that it starts."""

    def warm_tool(self, inputs: Inputs) -> None:
        """Bring the tool's own program into the page cache, so that no step times its loading."""
        if self.tool:
            run_tool([self.tool, "--version"], env=inputs.env)


def untar(directory: Path, inputs: Inputs) -> None:
    """Unpack the project into ``tree``."""
    tree = directory / "tree"
    tree.mkdir()
    run_tool(["tar", "-xf", inputs.archive, "-C", tree], env=inputs.env)


def copy(directory: Path, inputs: Inputs) -> None:
    """``cp -a`` of ``tree`` to ``copy``."""
    run_tool(["cp", "-a", "tree", "copy"], cwd=directory, env=inputs.env)


def grep(directory: Path, inputs: Inputs) -> None:
    """Search every byte of ``tree`` for a text that is not there.

    The output is a pipe: GNU grep stops at the first match when it writes to /dev/null.
    """
    argv = ["grep", "-r", "--exclude-dir=.git", NEEDLE, "."]
    run_tool(argv, cwd=directory / "tree", env=inputs.env, accept=(1,))


def find(directory: Path, inputs: Inputs) -> None:
    """Walk ``tree`` and stat every entry."""
    argv = ["find", ".", "-printf", "%s %m %n %T@ %p\n"]
    listed = run_tool(argv, cwd=directory / "tree", env=inputs.env).count(b"\n")
    # The archive may leave out directories that tar makes, never the other way around.
    if listed < inputs.entries:
        raise BenchError(f"find lists {listed} entries of {inputs.entries}")


def git_add(directory: Path, inputs: Inputs) -> None:
    """``git init`` and ``git add`` of everything in ``tree``."""
    tree = directory / "tree"
    run_tool(["git", "init", "-q"], cwd=tree, env=inputs.env)
    # A repacking child in the background would run into the next step.
    run_tool(["git", "-c", "gc.auto=0", "add", "-A", "-f"], cwd=tree, env=inputs.env)


def git_status(directory: Path, inputs: Inputs) -> None:
    """``git status`` of ``tree``; nothing changed since it was added."""
    said = run_tool(["git", "status", "--porcelain"], cwd=directory / "tree", env=inputs.env)
    if any(not line.startswith(b"A  ") for line in said.splitlines()):
        raise BenchError("git status reports changes that nobody made")


def remove(directory: Path, inputs: Inputs) -> None:
    """``rm -rf`` of ``copy``."""
    run_tool(["rm", "-rf", "copy"], cwd=directory, env=inputs.env)
    if (directory / "copy").exists():
        raise BenchError("rm -rf left something")


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
    """Overwrite one block of 4 KiB in four of ``data``, in random order, then fsync.

    Written in place rather than with fio: fio needs 0.3 s to start, several times what the writes
    take on a native filesystem, and timing that would flatter every other one.
    """
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


WORKLOADS = (
    Workload("untar", "untar", untar, tool="tar"),
    Workload("cp-a", "cp -a", copy, needs=("untar",), tool="cp"),
    Workload("find", "find + stat, warm", find, Cache.WARM, ("untar",), "find"),
    Workload("grep-warm", "grep -r, warm", grep, Cache.WARM, ("untar",), "grep"),
    Workload("git-add", "git init + add", git_add, needs=("untar",), tool="git"),
    Workload("git-status", "git status, warm", git_status, Cache.WARM, ("git-add",), "git"),
    Workload("rm-rf", "rm -rf", remove, needs=("cp-a",), tool="rm"),
    Workload("grep-cold", "grep -r, cold", grep, Cache.COLD, ("untar",), "grep"),
    Workload("git-status-cold", "git status, cold", git_status, Cache.COLD, ("git-add",), "git"),
    Workload("seq-write", "sequential write + fsync", sequential_write),
    Workload("seq-read-cold", "sequential read, cold", sequential_read, Cache.COLD, ("seq-write",)),
    Workload("seq-read", "sequential read, warm", sequential_read, Cache.WARM, ("seq-write",)),
    Workload("rand-write", "4 KiB random writes + fsync", random_write, needs=("seq-write",)),
    Workload("sqlite", "1,000 SQLite transactions", sqlite),
)
"""In the order in which they run."""


def with_needs(names: Collection[str]) -> list[Workload]:
    """The steps to run, in order, when *names* are to be measured: these and what they need."""
    wanted = set(names)
    for workload in reversed(WORKLOADS):
        if workload.name in wanted:
            wanted.update(workload.needs)
    return [workload for workload in WORKLOADS if workload.name in wanted]
