"""Which checkpoints a policy keeps: tables of ages, rules and reasons."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from cowfs.format.records import CheckpointRecord
from cowfs.service.config import Retention
from cowfs.service.retention import decide, oldest_first

NOW = int(datetime(2026, 6, 30, 12, 0, tzinfo=UTC).timestamp() * 1e9)
HOUR = 3_600_000_000_000
DAY = 24 * HOUR
NONE = Retention("development", 0, 0, 0, 0, 0, 0)


def rules(**numbers: int) -> Retention:
    values = {"keep_last": 0, "keep_hourly": 0, "keep_daily": 0, "keep_weekly": 0}
    return Retention("development", **{**values, "keep_days": 0, "keep_rescue": 0, **numbers})


def history(*ages: float, kind: str = "manual") -> list[CheckpointRecord]:
    """Checkpoints that were made so many days ago, in this order; named by their places."""
    return [
        CheckpointRecord(f"{at}", at, "main", kind, NOW - int(age * DAY))
        for at, age in enumerate(ages, start=1)
    ]


def kept(found: list[CheckpointRecord], chosen: Retention, now: int = NOW) -> list[str]:
    return [d.checkpoint.id for d in decide(found, chosen, now) if d.keep]


@pytest.mark.parametrize(
    ("ages", "chosen", "wanted"),
    [
        ([], rules(keep_last=3), []),
        ([9, 5, 3, 1], rules(keep_last=2), ["3", "4"]),
        ([9, 5, 3, 1], rules(keep_last=9), ["1", "2", "3", "4"]),
        # Days are counted from the newest.
        ([40, 31.5, 30.5, 5, 1], rules(keep_days=30), ["3", "4", "5"]),
        ([399, 390, 371, 370], rules(keep_days=30), ["1", "2", "3", "4"]),
        # The last one of each day that has any: 30 June 12:00, 08:00, 29 June, 20 June.
        ([10.0, 9.9, 1.0, 0.2, 0.0], rules(keep_daily=2), ["3", "5"]),
        ([10.0, 9.9, 1.0, 0.2, 0.0], rules(keep_daily=3), ["2", "3", "5"]),
        ([1 / 12, 1 / 24 + 0.001, 1 / 24, 0], rules(keep_hourly=2), ["3", "4"]),
        # 30 June 2026 is a Tuesday; 28 June, a Sunday, is of the week before.
        ([9, 3, 2, 1, 0], rules(keep_weekly=2), ["3", "5"]),
        ([9, 3, 2, 1, 0], rules(keep_weekly=1, keep_last=2), ["4", "5"]),
        ([400, 200, 100], NONE, ["1", "2", "3"]),
    ],
)
def test_rules(ages: list[float], chosen: Retention, wanted: list[str]) -> None:
    assert kept(history(*ages), chosen) == wanted


def test_pins_labels_and_the_start_are_exempt() -> None:
    found = history(300, 200, 100, 50, 0)
    found[0] = msgspec.structs.replace(found[0], epoch=0, kind="start")
    found[1] = msgspec.structs.replace(found[1], pinned=True, note="shown to Ada")
    found[2] = msgspec.structs.replace(found[2], label="v1")
    reasons = {d.checkpoint.id: d.reason for d in decide(found, rules(keep_last=1), NOW)}
    assert reasons["1"] == "the state before the first mount"
    assert reasons["2"] == "pinned: shown to Ada"
    assert reasons["3"] == "labelled v1"
    assert reasons["4"] == "no rule keeps it"
    assert kept(found, rules(keep_last=1)) == ["1", "2", "3", "5"]


def test_rescues_stay_for_a_while_and_count_for_no_other_rule() -> None:
    found = history(20, 8, 6, 1, kind="rescue") + history(0)
    found[-1] = msgspec.structs.replace(found[-1], id="5", epoch=5)
    assert kept(found, rules(keep_days=30, keep_last=10, keep_rescue=7)) == ["3", "4", "5"]


def test_what_an_undo_goes_to_counts_as_a_rescue() -> None:
    found = history(20, 6, 0)
    found_all = decide(found, rules(keep_days=30, keep_rescue=7), NOW, stacks={"1", "2"})
    assert [d.checkpoint.id for d in found_all if d.keep] == ["2", "3"]


@pytest.mark.parametrize("jump", [-400 * DAY, -DAY, 400 * DAY, 10_000 * DAY])
def test_a_clock_that_jumped_removes_nothing_at_once(jump: int) -> None:
    found = history(29, 20, 10, 0)
    assert kept(found, rules(keep_days=30), NOW + jump) == ["1", "2", "3", "4"]


def test_what_was_made_while_the_clock_was_wrong() -> None:
    """One from the future is kept, and is not what others are measured by."""
    found = history(40, 20, 10, -500, 0)
    assert kept(found, rules(keep_days=30)) == ["2", "3", "4", "5"]


@pytest.mark.parametrize("chosen", [NONE, rules(keep_rescue=1), rules(keep_daily=1)])
def test_the_newest_always_stays(chosen: Retention) -> None:
    found = history(500, kind="rescue") + history(400, 300, kind="rescue")
    found = [msgspec.structs.replace(r, id=f"{n}", epoch=n) for n, r in enumerate(found, 1)]
    assert "3" in kept(found, chosen)


def test_the_order_in_which_room_is_made() -> None:
    found = history(5, 4, 3, 2, 1)
    found[1] = msgspec.structs.replace(found[1], pinned=True)
    found[2] = msgspec.structs.replace(found[2], label="x")
    assert [record.id for record in oldest_first(found)] == ["1", "4"]
    assert oldest_first(found[-1:]) == []


def kinds(*found: tuple[float, str]) -> list[CheckpointRecord]:
    """Checkpoints with ages in days and kinds."""
    made = history(*(age for age, _ in found))
    return [
        msgspec.structs.replace(record, kind=kind)
        for record, (_, kind) in zip(made, found, strict=True)
    ]


@pytest.mark.parametrize("kind", ["auto", "tool", "agent", "turn"])
def test_what_an_agent_does_on_the_way_does_not_push_prompts_out(kind: str) -> None:
    """The newest so many are kept, and the newest so many prompts."""
    ages = [(9.0 - number / 10, kind) for number in range(20)]
    found = kinds((12, "prompt"), (11, "prompt"), (10, "prompt"), *ages)
    assert kept(found, rules(keep_last=2)) == ["2", "3", "22", "23"]


@pytest.mark.parametrize("kind", ["auto", "prompt", "tool", "agent", "turn"])
def test_all_kinds_but_rescues_are_ordinary_in_time(kind: str) -> None:
    found = kinds((40, kind), (10.0, kind), (9.9, kind), (0.2, kind), (0, "manual"))
    assert kept(found, rules(keep_days=30)) == ["2", "3", "4", "5"]
    assert kept(found, rules(keep_daily=3)) == ["1", "3", "5"]


def test_room_is_made_of_what_was_made_on_the_way_first() -> None:
    found = kinds((9, "manual"), (8, "prompt"), (7, "tool"), (6, "auto"), (5, "external"))
    found = [*found, *kinds((4, "turn"), (3, "agent"), (2, "rescue"), (1, "tool"))]
    found = [
        msgspec.structs.replace(record, id=f"{at}", epoch=at) for at, record in enumerate(found, 1)
    ]
    wanted = ["3", "4", "6", "7", "1", "2", "5", "8"]
    assert [record.id for record in oldest_first(found)] == wanted
