"""Power cuts: of a real file system under a workspace, and replayed from what was written."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from unittest import mock

import lmdb
import pytest

from tests.crash import blocks, cuts, replay
from tests.crash.disks import disks_missing
from tests.crash.knowledge import CrashError

CUTS, STATES = 25, 50


@pytest.fixture(autouse=True)
def _alone() -> None:
    """Children are forked, so nothing else may run in this process."""
    assert threading.active_count() == 1


@pytest.fixture
def needs_disks() -> None:
    if reason := disks_missing():
        pytest.skip(reason)


def _without_sync() -> None:
    """In the children: LMDB leaves it to the kernel when what it writes reaches the disk."""
    mock.patch.object(lmdb, "open", functools.partial(lmdb.open, sync=False)).start()


@pytest.mark.parametrize("seed", [1, 2])
def test_power_cuts(needs_disks: None, fast_path: Path, seed: int) -> None:
    assert cuts.run(CUTS, seed, fast_path).cuts == CUTS


def test_power_cuts_under_a_mount(needs_disks: None, needs_fuse: None, fast_path: Path) -> None:
    assert cuts.run_mounted(3, 1, fast_path).cuts == 3


def test_a_store_that_does_not_sync_is_noticed_by_cuts(needs_disks: None, fast_path: Path) -> None:
    with pytest.raises(CrashError, match=r"seed 1, life"):
        cuts.run(CUTS, 1, fast_path, sabotage=_without_sync)


@pytest.mark.parametrize("seed", range(4))
def test_replayed_crash_states(needs_fuse: None, fast_path: Path, seed: int) -> None:
    outcome = replay.run(STATES, seed, fast_path)
    assert outcome.bad == []
    assert outcome.states == STATES
    assert outcome.syncs > 50
    assert outcome.lost > STATES  # that the states are not all what was synced


def test_a_store_that_does_not_sync_is_noticed_by_replay(needs_fuse: None, fast_path: Path) -> None:
    outcome = replay.run(10, 1, fast_path, sabotage=_without_sync)
    assert outcome.syncs == 0
    assert len(outcome.bad) > 5


@pytest.mark.parametrize("seed", range(4))
def test_replayed_states_of_a_disk(
    needs_disks: None, needs_fuse: None, fast_path: Path, seed: int
) -> None:
    outcome = blocks.run(STATES, seed, fast_path)
    assert outcome.bad == []
    assert outcome.states == STATES
    assert outcome.syncs > 50
    assert outcome.lost > STATES


def test_a_file_system_that_does_not_flush_is_noticed(
    needs_disks: None, needs_fuse: None, fast_path: Path
) -> None:
    assert len(blocks.run(STATES, 1, fast_path, options="barrier=0").bad) == 1
