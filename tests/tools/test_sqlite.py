"""SQLite with several writing processes: every checkpoint is a database that can be opened."""

from __future__ import annotations

import contextlib
import os
import selectors
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.mounting import Mounted
from tests.tools.tool import SECONDS, export, started

WRITERS = 3
CHECKPOINTS = 8
BETWEEN = 10
"""Commits that are waited for before each checkpoint."""
KEPT = 8
"""Transactions of each writer before its last one whose rows are kept."""

_ROWS = 5
_WRITER = f"""
import sqlite3, sys
path, me = sys.argv[1], int(sys.argv[2])
db = sqlite3.connect(path, timeout=60, isolation_level=None)
db.execute("PRAGMA synchronous=" + sys.argv[3])
number = db.execute("SELECT coalesce(max(number), 0) FROM rows WHERE writer = ?", (me,)).fetchone()
number = number[0]
while True:
    db.execute("BEGIN IMMEDIATE")
    for part in range({_ROWS}):
        db.execute("INSERT INTO rows VALUES (?, ?, ?, ?)", (me, number + 1, part, b"x" * 700))
    db.execute("UPDATE counters SET number = ? WHERE writer = ?", (number + 1, me))
    db.execute("DELETE FROM rows WHERE writer = ? AND number <= ?", (me, number - {KEPT}))
    db.execute("COMMIT")
    number += 1
    print(number, flush=True)
"""


class Writers:
    """Processes that commit until they are ended, and how far each of them is known to be."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], committed: list[int]) -> None:
        self.committed = list(committed)
        self._processes = processes
        self._selector = selectors.DefaultSelector()
        self._partial = [b""] * len(processes)
        for number, process in enumerate(processes):
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            self._selector.register(process.stdout, selectors.EVENT_READ, number)

    def poll(self, timeout: float | None = 0) -> None:
        """Take in what the writers have said."""
        for key, _ in self._selector.select(timeout):
            number: int = key.data
            said = os.read(key.fd, 1 << 16)
            assert said, f"writer {number} ended"
            *lines, self._partial[number] = (self._partial[number] + said).split(b"\n")
            for line in lines:
                assert line.isdigit(), (line, said)
                self.committed[number] = int(line)

    def wait(self, commits: int) -> None:
        """Until there are `commits` more."""
        enough = sum(self.committed) + commits
        while sum(self.committed) < enough:
            self.poll(SECONDS)

    def close(self) -> None:
        self._selector.close()


@contextlib.contextmanager
def writing(path: Path, env: dict[str, str], synchronous: str) -> Iterator[Writers]:
    """Processes that write a database while the block runs; killed at its end."""
    committed = examine(path)
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                started(
                    [sys.executable, "-c", _WRITER, path, str(n), synchronous], path.parent, env
                )
            )
            for n in range(WRITERS)
        ]
        writers = Writers(processes, committed)
        stack.callback(writers.close)
        yield writers


def create(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(f"PRAGMA journal_mode={mode}").fetchone() == (mode,)
        db.execute("CREATE TABLE rows (writer, number, part, filler)")
        db.execute("CREATE INDEX of_rows ON rows (writer, number)")
        db.execute("CREATE TABLE counters (writer PRIMARY KEY, number)")
        db.executemany("INSERT INTO counters VALUES (?, 0)", [(n,) for n in range(WRITERS)])
        db.commit()


def examine(path: Path) -> list[int]:
    """The database is sound and holds whole transactions; how many of each writer."""
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        counters = dict(db.execute("SELECT writer, number FROM counters").fetchall())
        for writer, number in counters.items():
            kept = range(max(1, number - KEPT), number + 1)
            rows = db.execute("SELECT number FROM rows WHERE writer = ? ORDER BY 1", (writer,))
            assert [row[0] for row in rows] == [n for n in kept for _ in range(_ROWS)]
        return [counters[writer] for writer in range(WRITERS)]


def _check_between(before: list[int], found: list[int], after: list[int]) -> None:
    """What had been committed is there, and nothing that was begun later.

    A writer may have committed once more than it has told of.
    """
    assert all(low <= n for low, n in zip(before, found, strict=True)), (before, found)
    assert all(n <= high + 1 for n, high in zip(found, after, strict=True)), (found, after)


@pytest.mark.parametrize("synchronous", ["full", "off"])
@pytest.mark.parametrize("mode", ["wal", "delete", "truncate"])
def test_checkpoints_of_a_database_in_use(
    workspace: Mounted, tmp_path: Path, env: dict[str, str], mode: str, synchronous: str
) -> None:
    """With "off" SQLite relies on the order of its writes alone, and so on a checkpoint being
    one moment."""
    path = workspace.mountpoint / "database"
    create(path, mode)
    known: list[tuple[str, list[int], list[int]]] = []
    with writing(path, env, synchronous) as writers:
        for _ in range(CHECKPOINTS):
            writers.wait(BETWEEN)
            writers.poll()
            before = list(writers.committed)
            checkpoint = workspace.checkpoint()
            writers.wait(1)
            known.append((checkpoint, before, list(writers.committed)))
    for number, (checkpoint, before, after) in enumerate(known):
        found = examine(export(workspace, checkpoint, tmp_path / str(number)) / "database")
        _check_between(before, found, after)
    # The writers were killed: the database in the mount recovers, with all they committed.
    final = examine(path)
    assert all(low <= n for low, n in zip(writers.committed, final, strict=True))


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_restored_database_is_used_again(
    workspace: Mounted, env: dict[str, str], mode: str
) -> None:
    path = workspace.mountpoint / "database"
    create(path, mode)
    with writing(path, env, "full") as writers:
        writers.wait(BETWEEN)
        before = list(writers.committed)
        checkpoint = workspace.checkpoint()
        writers.wait(BETWEEN)
        after = list(writers.committed)
    last = examine(path)
    workspace.restore(checkpoint)
    restored = examine(path)
    _check_between(before, restored, after)
    assert sum(restored) < sum(last)
    with writing(path, env, "full") as writers:
        writers.wait(BETWEEN)
    assert sum(examine(path)) >= sum(restored) + BETWEEN
    workspace.call("undo")
    assert examine(path) == last
