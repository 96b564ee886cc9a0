"""Whatever is in a store, verify ends with a report."""

from __future__ import annotations

import random

import pytest

from cowfs.store.env import TABLES
from tests.verify.sample import Hands, Sample

DAMAGES = 40
PER_STORE = 6


def damage(hands: Hands, chance: random.Random) -> None:
    """Drop, change, cut off or add one record of any table."""
    table = chance.choice([name for name in TABLES if hands.rows(name)])
    key, value = chance.choice(hands.rows(table))
    if (table, key) == ("meta", b"format") or table == "branch":
        return  # without these a store is not opened at all
    way = chance.randrange(5)
    if way == 0:
        hands.drop(table, key)
    elif way == 1 and value:
        at = chance.randrange(len(value))
        flipped = value[at] ^ 1 << chance.randrange(8)
        hands.put(table, key, value[:at] + bytes((flipped,)) + value[at + 1 :])
    elif way == 2:
        hands.put(table, key, value[: chance.randrange(len(value) + 1)])
    elif way == 3:
        at = chance.randrange(len(key))
        flipped = key[at] ^ 1 << chance.randrange(8)
        hands.put(table, key[:at] + bytes((flipped,)) + key[at + 1 :], value)
    else:
        hands.put(table, chance.randbytes(chance.randrange(1, 40)), value)


@pytest.mark.parametrize("seed", range(DAMAGES))
def test_any_damage_ends_in_a_report(sample: Sample, seed: int) -> None:
    chance = random.Random(seed)
    with sample.open() as hands:
        for _ in range(chance.randrange(1, PER_STORE)):
            damage(hands, chance)
    report = sample.verify()
    assert report.skipped == []
    for problem in report.problems:
        assert problem.detail
        assert problem.to_json()["check"] == problem.check
