"""When automatic checkpoints are due: the schedule alone, with moments of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cowfs.daemon.schedule import RETRY_SECONDS, Schedule
from cowfs.service.config import Checkpoints

TICK = 0.25
OFF = Checkpoints("manual", 0, 1, 0, 0, 0, 0)
EXPLORATORY = replace(OFF, settle=3.0, spacing=15.0, interval=600.0)


@dataclass
class Life:
    """A workspace whose checkpoints are made when they are due. made: (moment, reason)."""

    policy: Checkpoints
    moment: float = 1000.0
    epoch: int = 1
    changes: int = 0
    files: int = 0
    made: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.schedule = Schedule(self.policy)

    def tick(self, changes: int = 0, files: int = 0) -> str:
        """A quarter of a second in which so many changes are made, to so many further files."""
        self.moment += TICK
        self.changes += changes
        self.files += files
        self.schedule.observe(self.moment, self.epoch, self.changes, self.files)
        reason = self.schedule.due(self.moment)
        if reason:
            self.made.append((self.moment, reason))
            self.checkpoint()
        return reason

    def checkpoint(self) -> None:
        """Whoever makes it: a new epoch begins."""
        self.epoch += 1
        self.changes = self.files = 0

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.tick()


def test_an_idle_workspace_is_left_alone() -> None:
    life = Life(EXPLORATORY)
    life.wait(10_000)
    assert life.made == []


def test_one_checkpoint_for_a_burst_when_it_has_settled() -> None:
    life = Life(EXPLORATORY)
    for _ in range(8):
        assert life.tick(50, 10) == ""
    last = life.moment
    life.wait(1000)
    assert life.made == [(last + 3.0, "after a burst")]


def test_one_that_writes_all_the_time_is_cut_now_and_then() -> None:
    life = Life(EXPLORATORY)
    for _ in range(round(3600 / TICK)):
        life.tick(1, 0)
    reasons = [reason for _, reason in life.made]
    assert reasons == ["after a while"] * 5  # each 600 s after the first change that follows
    moments = [1000.0 + TICK] + [moment for moment, _ in life.made]
    assert all(b - a <= 600 + TICK for a, b in pairwise(moments))


def test_a_small_burst_waits_for_the_interval() -> None:
    life = Life(replace(EXPLORATORY, burst=20))
    life.tick(3, 3)
    first = life.moment
    life.wait(1000)
    assert life.made == [(first + 600, "after a while")]


def test_by_number_of_files() -> None:
    life = Life(replace(OFF, every_files=100))
    for _ in range(25):
        life.tick(40, 10)
    assert [reason for _, reason in life.made] == ["by number"] * 2
    life.wait(10_000)
    assert len(life.made) == 2


def test_not_sooner_than_the_spacing_says_whoever_made_the_one_before() -> None:
    life = Life(EXPLORATORY)
    life.tick()
    life.checkpoint()
    life.tick(1, 1)
    known = life.moment
    life.wait(100)
    assert life.made == [(known + 15.0, "after a burst")]


def test_what_a_life_before_has_left_is_kept() -> None:
    life = Life(EXPLORATORY, files=7)
    life.wait(100)
    assert len(life.made) == 1


def test_a_new_epoch_that_has_changes_already() -> None:
    life = Life(EXPLORATORY)
    life.tick(5, 5)
    life.checkpoint()  # and between it and the next tick something is changed again
    life.tick(1, 1)
    life.wait(100)
    assert len(life.made) == 1


def test_what_leaves_nothing_is_asked_about_once() -> None:
    life = Life(EXPLORATORY)
    life.tick(2, 0)
    life.moment += 100
    assert life.schedule.due(life.moment)
    life.schedule.nothing()
    life.wait(1000)
    assert life.made == []
    life.tick(1, 1)
    life.wait(1000)
    assert len(life.made) == 1


def test_a_failure_is_not_repeated_at_once() -> None:
    schedule = Schedule(EXPLORATORY)
    schedule.observe(0.0, 1, 5, 5)
    assert schedule.due(20.0)
    schedule.failed(20.0)
    moments = [20.0 + TICK * n for n in range(4000)]
    due = [moment for moment in moments if schedule.due(moment)]
    assert due[0] == 20.0 + RETRY_SECONDS


def test_after_a_long_pause_of_the_daemon_there_is_one() -> None:
    """A daemon that was stopped, or a monotonic clock that goes on in a suspended machine."""
    life = Life(EXPLORATORY)
    life.tick(5, 5)
    life.moment += 1_000_000
    life.wait(1000)
    assert len(life.made) == 1


def test_a_policy_that_is_changed_counts_from_then_on() -> None:
    life = Life(OFF)
    life.tick(5, 5)
    life.wait(1000)
    assert life.made == []
    life.schedule.policy = EXPLORATORY
    life.tick()
    assert len(life.made) == 1


steps = st.lists(
    st.tuples(st.integers(1, 400), st.integers(0, 30), st.integers(0, 30), st.booleans()),
    max_size=30,
)
policies = st.builds(
    Checkpoints,
    st.just("manual"),
    settle=st.sampled_from([0.0, 0.5, 3.0]),
    burst=st.sampled_from([1, 10]),
    spacing=st.sampled_from([0.0, 1.0, 15.0]),
    interval=st.sampled_from([0.0, 10.0, 60.0]),
    every_files=st.sampled_from([0, 5, 100]),
    before_deletion=st.just(0),
)


@given(policies, steps)
def test_never_too_many_and_none_is_missed(
    policy: Checkpoints, steps: list[tuple[int, int, int, bool]]
) -> None:
    life = Life(policy)
    unsaved: float | None = None
    sealed: list[float] = []
    for ticks, changes, most, by_hand in steps:
        files = min(most, changes)
        for at in range(ticks):
            quiet = at > 0
            had = unsaved is not None or (not quiet and bool(changes or files))
            reason = life.tick(0 if quiet else changes, 0 if quiet else files)
            if not quiet and changes and unsaved is None:
                unsaved = life.moment
            if reason:
                assert had, "a checkpoint of nothing"
                assert not sealed or life.moment - sealed[-1] >= policy.spacing
                sealed.append(life.moment)
                unsaved = None
            if unsaved is not None and policy.interval:
                assert life.moment - unsaved <= max(policy.interval, policy.spacing) + TICK
        if by_hand:
            life.checkpoint()
            unsaved = None
            life.tick()
            sealed.append(life.moment)
    files = life.files
    life.wait(max(policy.settle, policy.spacing, policy.interval) + 2 * TICK)
    settles = policy.settle and max(files, 1) >= policy.burst
    if unsaved is not None and (settles or policy.interval):
        assert life.changes == 0, "the last changes are in no checkpoint"


@pytest.mark.parametrize("policy", [OFF, replace(OFF, before_deletion=50)])
def test_manual_means_none(policy: Checkpoints) -> None:
    life = Life(policy)
    for _ in range(10_000):
        life.tick(3, 1)
    assert life.made == []
