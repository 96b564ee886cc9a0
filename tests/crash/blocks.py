"""Power cuts by replay of a whole disk: what a block device may hold that keeps what was flushed.

An ext4 on a loop device, whose file lies on a file system that records each write and flush
(recorder.py), holds a store and its base. A crash state has all writes up to the last flush before
some moment and any of the writes after it, in pieces of a page. It is mounted, so that ext4 replays
its journal, and opened as a daemon would; everything that was reported must be there. Needs root.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.crash.disks import Disk, attached, make_ext4, run_tool
from tests.crash.forks import Child, Report
from tests.crash.kills import base_tree, work
from tests.crash.knowledge import CrashError, Knowledge, Progress
from tests.crash.local import Life, make_base
from tests.crash.recorder import Entry, read_record, recording
from tests.crash.replay import Outcome, Recorded, check, finish
from tests.crash.states import Call, Tree, first_state
from tests.crash.workload import plan
from tests.mount.calls import eventually

_MEGABYTES = 32
_OPERATIONS = 60
_LOOP_CTL_REMOVE = 0x4C81  # linux/loop.h


def run(
    states: int,
    seed: int,
    parent: Path,
    *,
    options: str = "",
    most_bad: int = 1,
) -> Outcome:
    """Record a life on an ext4 mounted with some options, and open so many crash states of it, or
    until `most_bad` were bad. What is wrong with a state is in the
    outcome."""
    with tempfile.TemporaryDirectory(dir=parent, prefix="crash-") as top, _device() as device:
        place, outcome = Path(top), Outcome()
        (place / "disk").mkdir()
        base = _base(place)
        calls = plan(first_state(base), seed, _OPERATIONS, rounds=3)
        entries = _record(place, device, calls, seed, options)
        outcome.syncs = sum(entry.kind == b"S" for entry in entries)
        for content, known in _states(entries, base, calls, states, seed, outcome):
            outcome.states += 1
            try:
                _open(place, device, content, options, known)
            except CrashError as error:
                outcome.bad.append(f"seed {seed}, state {outcome.states}: {error}")
                if len(outcome.bad) == most_bad:
                    break
        return outcome


@contextlib.contextmanager
def _device() -> Iterator[str]:
    """A loop device for the recorded disk and all its states: a base that lies on another device
    is another base. Of a high number, so that nobody else who looks for a free one takes it."""
    number = 1000 + os.getpid() % 100_000
    try:
        yield f"/dev/loop{number}"
    finally:
        with contextlib.suppress(OSError), open("/dev/loop-control", "rb") as control:
            fcntl.ioctl(control, _LOOP_CTL_REMOVE, number)


def _base(place: Path) -> Tree:
    make_base(place / "base")
    return base_tree(place / "base")


def _record(place: Path, device: str, calls: list[Call], seed: int, options: str) -> list[Entry]:
    with recording(place, _MEGABYTES << 20) as (mountpoint, record):
        with attached(mountpoint / "disk", device=device):
            make_ext4(Path(device))
            with _mounted(device, place, options) as at:
                make_base(at / "base")
                run_tool("sync", "-f", str(at))

                def live(report: Report) -> None:
                    facts = os.open(mountpoint / "facts", os.O_WRONLY | os.O_APPEND)

                    def note(*values: object) -> None:
                        os.write(facts, json.dumps(values).encode() + b"\n")

                    note("made")
                    life = Life(at / "store", at / "base")
                    work(life, calls, seed, note)
                    life.close()

                finish(Child(live))
        eventually(lambda: _free(device))
        return read_record(record)


@contextlib.contextmanager
def _mounted(device: str, place: Path, options: str) -> Iterator[Path]:
    disk = Disk(device, place / "disk", options)
    disk.mount()
    try:
        yield disk.at
    finally:
        disk.unmount()


def _states(
    entries: list[Entry], base: Tree, calls: list[Call], states: int, seed: int, outcome: Outcome
) -> Iterator[tuple[bytearray, Knowledge]]:
    """(content of the disk, what is known) at random moments after the base was made, in order."""
    rng, disk = random.Random(seed), Recorded()
    progress = Progress(first_state(base), calls, {}, paged=False)
    begin = next(n for n, entry in enumerate(entries) if entry.data == b'["made"]\n')
    writes = [n for n, entry in enumerate(entries) if entry.kind == b"W" and n > begin]
    done = 0
    for moment in sorted(rng.choice(writes) for _ in range(states)):
        for entry in entries[done : moment + 1]:
            disk.add(entry)
            if entry.kind == b"F":
                progress.note(json.loads(entry.data))
        done = moment + 1
        yield disk.crashed(rng, outcome), progress.knowledge()


def _open(place: Path, device: str, content: bytearray, options: str, known: Knowledge) -> None:
    """Raises CrashError when what is on the disk is not what it has to be."""
    image = place / "state"
    image.write_bytes(content)
    with attached(image, device=device):
        try:
            with _mounted(device, place, options) as at:
                finish(Child(lambda report: check(at / "store", at / "base", known)))
        except AssertionError as error:  # ext4 itself may be beyond use
            raise CrashError(str(error)) from None
    eventually(lambda: _free(device))


def _free(device: str) -> bool:
    """Whether nothing is attached any more; losetup(8) says that this takes a moment."""
    return not Path(f"/sys/block/{Path(device).name}/loop/backing_file").exists()
