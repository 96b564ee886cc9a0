"""Crash states of the machine's disk, with writes reordered between flushes.

QEMU records each write and flush of the disk while one life works, and its reports among them.
A crash state has all writes up to the last flush before some moment and any of those after it, in
pieces of a page. Each is given to the machine, which mounts it and checks it.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator

from tests.crash.knowledge import CrashError
from tests.crash.recorder import Entry
from tests.crash.replay import Outcome, Recorded
from tests.vm.agent import MARK_BYTES
from tests.vm.cuts import check
from tests.vm.logged import read_log, report_in
from tests.vm.machine import Machine
from tests.vm.story import Life

DATA_BYTES = 96 << 20
_FILE_SYSTEM = DATA_BYTES - (1 << 20)
_MARKS_AT = DATA_BYTES - MARK_BYTES
_SILENCE = 240


def run(
    states: int, seed: int, machine: Machine, say: Callable[[str], None], options: str = ""
) -> Outcome:
    """Record a life on an ext4 mounted with some options, and check so many crash states of it, or
    until one is bad. The machine was saved. Raises CrashError when the life fails, VmError."""
    rng, outcome = random.Random(seed), Outcome()
    life = Life(rng.randrange(1 << 32))
    machine.make_data(_FILE_SYSTEM)
    disk = Recorded(machine.data.read_bytes())
    entries = _record(machine, life.seed, options)
    outcome.syncs = sum(entry.kind == b"S" for entry in entries)
    say(f"recorded {len(entries)} writes and flushes, {outcome.syncs} of them flushes")
    for content in _states(entries, disk, life, states, rng, outcome):
        started = time.monotonic()
        machine.data.write_bytes(content)
        outcome.states += 1
        try:
            check(machine, [life])
        except CrashError as error:
            outcome.bad.append(f"seed {seed}, state {outcome.states}: {error}")
            break
        finally:
            machine.cut()
        say(f"state {outcome.states}: sound, {time.monotonic() - started:.1f} s")
    return outcome


def _record(machine: Machine, seed: int, options: str) -> list[Entry]:
    with _logging(machine):
        machine.resume()
        machine.ask("live", seed=seed, lives=[], options=options, marks=True, syncs=True)
        for _ in machine.reports(_SILENCE):
            pass
        machine.quit()
    return list(read_log(machine.log, _MARKS_AT))


@contextlib.contextmanager
def _logging(machine: Machine) -> Iterator[None]:
    machine.log.write_bytes(b"")
    machine.logged = True
    try:
        yield
    finally:
        machine.logged = False


def _states(
    entries: list[Entry],
    disk: Recorded,
    life: Life,
    states: int,
    rng: random.Random,
    outcome: Outcome,
) -> Iterator[bytearray]:
    """Contents of the disk at random moments after the life's start, in order; `life` has the
    reports up to each."""
    start = next(n for n, entry in enumerate(entries) if entry.kind == b"F")
    writes = [n for n, entry in enumerate(entries) if entry.kind == b"W" and n > start]
    done = 0
    for moment in sorted(rng.choice(writes) for _ in range(states)):
        for entry in entries[done : moment + 1]:
            disk.add(entry)
            if entry.kind == b"F":
                life.reports.append(report_in(entry.data))
        done = moment + 1
        yield disk.crashed(rng, outcome)
