"""Killed at every step that has a name, and at random moments; `scripts/crash` makes more."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

import cowfs
from cowfs.store import steps
from cowfs.store.group import TransactionGroup
from cowfs.store.writer import Writer
from tests.crash import kills, mounts
from tests.crash.knowledge import CrashError
from tests.crash.local import Life

_ROOT = Path(cowfs.__file__).resolve().parent.parent
KILLS = 100
MOUNT_STEPS = [
    "commit.before-sync",
    "commit.after-sync",
    "checkpoint.sealed",
    "restore.durable",
    "restore.reloaded",
    "apply.staged",
    "apply.placed",
    "unmount.done",
]
"""Where a mount makes a difference. All steps: without a mount."""


@pytest.fixture(autouse=True)
def _alone() -> None:
    """Children are forked, so nothing else may run in this process."""
    assert threading.active_count() == 1


@pytest.mark.parametrize("seed", range(5))
def test_killed_at_steps_and_at_random(fast_path: Path, seed: int) -> None:
    tally = kills.run(KILLS, seed, fast_path)
    assert tally.kills == KILLS
    assert set(tally.by_step) == set(kills.STEPS)


def test_killed_under_a_mount(needs_fuse: None, fast_path: Path) -> None:
    tally = mounts.run(2 * len(MOUNT_STEPS), 1, fast_path, only=MOUNT_STEPS)
    assert set(tally.by_step) == set(MOUNT_STEPS)


def test_every_step_is_somewhere() -> None:
    source = "".join(path.read_text() for path in (_ROOT / "cowfs").rglob("*.py"))
    for step in steps.STEPS:
        assert source.count(f'reached("{step}")') == (2 if step == "restore.told" else 1), step


def test_a_process_that_is_not_armed_goes_on() -> None:
    command = "from cowfs.store.steps import reached; reached('commit.begin'); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"alive\n"


# -- that what is broken is noticed: each is done in the children, which end with it --------------


def _does_not_wait() -> None:
    """fsync returns, and nothing was committed."""

    def fsync(life: Life) -> None:
        life.volume.reap()

    mock.patch.object(Life, "fsync", fsync).start()


def _commits_out_of_order() -> None:
    """A group overtakes the one before it."""
    submit, wait = Writer.submit, Writer.wait
    held: list[TransactionGroup] = []

    def later(writer: Writer, group: TransactionGroup) -> None:
        held.append(group)
        if len(held) == 2:
            submit(writer, held.pop())
            submit(writer, held.pop())

    def wait_for_all(writer: Writer, group: TransactionGroup, timeout: float | None = None) -> None:
        while held:
            submit(writer, held.pop())
        wait(writer, group, timeout)

    mock.patch.object(Writer, "submit", later).start()
    mock.patch.object(Writer, "wait", wait_for_all).start()


def _loses_a_removal() -> None:
    """One record of a group is not written."""
    submit = Writer.submit

    def without(writer: Writer, group: TransactionGroup) -> None:
        del group.removals[:1]
        submit(writer, group)

    mock.patch.object(Writer, "submit", without).start()


@pytest.mark.parametrize("sabotage", [_does_not_wait, _commits_out_of_order, _loses_a_removal])
def test_what_is_broken_is_noticed(fast_path: Path, sabotage: Callable[[], None]) -> None:
    with pytest.raises(CrashError, match=r"seed 1, life"):
        kills.run(40, 1, fast_path, sabotage=sabotage)
