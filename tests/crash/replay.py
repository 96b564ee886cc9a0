"""Power cuts by replay: what a disk may hold that keeps only what was synced.

LMDB's file lies on a file system that records each write and sync (recorder.py). A crash state has
all writes up to the last sync before some moment, and any of the writes after it, in pieces of a
page. It is opened as a daemon would, and everything that was reported before that moment must be
there.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from cowfs.store import holes
from tests.crash.forks import Child, Report
from tests.crash.kills import base_tree, work
from tests.crash.knowledge import CrashError, Knowledge, Progress, check_closed, matching
from tests.crash.local import Life, make_base
from tests.crash.recorder import Entry, read_record, recording
from tests.crash.states import PAGE, Call, first_state
from tests.crash.workload import plan

_NEW = "data.mdb.new"
"""The name of a store's file until it was created (docs/format.md)."""


@dataclass
class Outcome:
    """states: how many were opened. bad: what was wrong, one text for each state that was.
    writes: after the last sync, of all states; lost: those that were left out. syncs: recorded."""

    states: int = 0
    writes: int = 0
    lost: int = 0
    syncs: int = 0
    bad: list[str] = field(default_factory=list)


class Recorded:
    """A file or a disk as recorded: `synced` is sure, `pending` may be there or not, in pieces of
    a page."""

    def __init__(self, content: bytes = b"") -> None:
        self.synced = bytearray(content)
        self.pending: list[Entry] = []

    def add(self, entry: Entry) -> None:
        if entry.kind == b"S":
            for old in self.pending:
                _put(self.synced, old)
            self.pending = []
        elif entry.kind == b"W":
            end = entry.offset + len(entry.data)
            cuts = [entry.offset, *range(entry.offset - entry.offset % PAGE + PAGE, end, PAGE), end]
            self.pending += [
                Entry(b"W", start, entry.data[start - entry.offset : stop - entry.offset])
                for start, stop in itertools.pairwise(cuts)
            ]
        elif entry.kind == b"T":
            self.pending.append(entry)

    def crashed(self, rng: random.Random, outcome: Outcome) -> bytearray:
        """The content after a crash now."""
        kept = rng.choice((0.0, 0.1, 0.5, 0.5, 0.9))
        content = bytearray(self.synced)
        for entry in self.pending:
            outcome.writes += 1
            if rng.random() < kept:
                _put(content, entry)
            else:
                outcome.lost += 1
        return content


def _put(content: bytearray, entry: Entry) -> None:
    if entry.kind == b"T":
        del content[entry.offset :]
        content.extend(bytes(entry.offset - len(content)))
        return
    content.extend(bytes(max(entry.offset - len(content), 0)))
    content[entry.offset : entry.offset + len(entry.data)] = entry.data


def run(
    states: int,
    seed: int,
    parent: Path,
    *,
    operations: int = 60,
    sabotage: Callable[[], None] = lambda: None,
) -> Outcome:
    """Record a life and open so many crash states of it. Raises CrashError when the recording
    fails; what is wrong with a state is in the outcome."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(dir=parent, prefix="crash-") as top:
        place = Path(top)
        make_base(place / "base")
        calls = _calls(place, seed, operations)
        entries = _record(place, calls, seed, sabotage)
        outcome.syncs = sum(entry.kind == b"S" for entry in entries)
        for name, content, known in _states(place, entries, calls, states, seed, outcome):
            store = place / f"state{outcome.states}"
            store.mkdir()
            (store / name).write_bytes(content)
            try:
                finish(Child(lambda report: check(store, place / "base", known)))  # noqa: B023
            except CrashError as error:
                outcome.bad.append(f"seed {seed}, state {outcome.states}: {error}")
            shutil.rmtree(store)
            outcome.states += 1
    return outcome


def _calls(place: Path, seed: int, operations: int) -> list[Call]:
    """A life without applies: the base is not on the recorded disk."""
    state = first_state(base_tree(place / "base"))
    return plan(state, seed, operations, rounds=3, applies=False)


def _record(place: Path, calls: list[Call], seed: int, sabotage: Callable[[], None]) -> list[Entry]:
    store = place / "store"
    store.mkdir()
    with recording(place) as (mountpoint, record):
        os.symlink(mountpoint / "disk", store / _NEW)

        def live(report: Report) -> None:
            sabotage()
            facts = os.open(mountpoint / "facts", os.O_WRONLY | os.O_APPEND)

            def note(*values: object) -> None:
                os.write(facts, json.dumps(values).encode() + b"\n")

            mock.patch.object(holes, "_fallocate", write_zeros).start()
            life = Life(store, place / "base")
            note("created")
            work(life, calls, seed, note)
            life.close()
            os.close(facts)

        finish(Child(live))
        return read_record(record)


def write_zeros(fd: int, mode: int, offset: int, length: int) -> int:
    """What a hole is to those who read: the recorder has none."""
    os.pwrite(fd, bytes(length), offset)
    return 0


def _states(
    place: Path, entries: list[Entry], calls: list[Call], states: int, seed: int, outcome: Outcome
) -> Iterator[tuple[str, bytearray, Knowledge]]:
    """(name of the file, its content, what is known) of crash states at random moments, in
    order."""
    rng, disk = random.Random(seed), Recorded()
    progress = Progress(first_state(base_tree(place / "base")), calls, {}, paged=False)
    writes = [number for number, entry in enumerate(entries) if entry.kind in (b"W", b"T")]
    moments = sorted(rng.choice(writes) for _ in range(states))
    done, name = 0, _NEW
    for moment in moments:
        for entry in entries[done : moment + 1]:
            disk.add(entry)
            if entry.kind == b"F":
                report = json.loads(entry.data)
                progress.note(report)
                name = "data.mdb" if report == ["created"] else name
        done = moment + 1
        yield name, disk.crashed(rng, outcome), progress.knowledge()


def finish(child: Child) -> None:
    """Wait for a child that reports nothing. Raises CrashError when it fails."""
    for _ in child.reports():
        pass
    child.wait()


def check(store: Path, base: Path, known: Knowledge) -> None:
    """What a crash left is a state that may be, and sound. Raises CrashError."""
    life = Life(store, base)
    state = matching(known, life.found())
    life.close()
    assert life.base_fd is not None
    check_closed(store, life.base_fd, Knowledge([state], known.ids))
