"""The search for the first bad state: every line up to a length, every culprit, any skips."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from cowfs.errors import BisectEndError
from cowfs.service.finding.bisecting import Bisection, Outcome, Verdict


class Line:
    """States 0 (the newest) to count - 1; those up to `culprit` are bad."""

    def __init__(self, count: int, culprit: int, skipped: frozenset[int] = frozenset()) -> None:
        self.count = count
        self.culprit = culprit
        self.skipped = skipped
        self.tested: list[int] = []
        self.said: list[tuple[int, int]] = []

    def test(self, state: int) -> Verdict:
        assert state not in self.tested, "twice"
        self.tested.append(state)
        if state in self.skipped:
            return Verdict.SKIP
        return Verdict.BAD if state <= self.culprit else Verdict.GOOD

    def run(self, good: int | None) -> Outcome[int]:
        def say(left: int, steps: int) -> None:
            self.said.append((left, steps))

        return Bisection(range(self.count), str, self.test, say).run(good)


@pytest.mark.parametrize("count", range(2, 40))
def test_every_culprit_is_found(count: int) -> None:
    for culprit in range(count - 1):
        line = Line(count, culprit)
        outcome = line.run(count - 1)
        assert outcome.culprits == [culprit]
        assert outcome.good == culprit + 1
        steps = math.ceil(math.log2(count - 1)) if count > 2 else 0
        assert len(line.tested) <= 2 + steps
        assert [steps for _, steps in line.said] == [left.bit_length() for left, _ in line.said]


@pytest.mark.parametrize("count", range(2, 40))
def test_a_good_end_is_looked_for(count: int) -> None:
    for culprit in range(count - 1):
        line = Line(count, culprit)
        outcome = line.run(None)
        assert outcome.culprits == [culprit]
        assert len(line.tested) <= 3 + 2 * math.ceil(math.log2(culprit + 2))


def test_with_skips_the_culprit_is_among_those_that_are_left() -> None:
    for count, seed in itertools.product(range(3, 12), range(60)):
        chosen = random.Random(seed)
        culprit = chosen.randrange(count - 1)
        inner = [n for n in range(1, count - 1) if chosen.random() < 0.4]
        line = Line(count, culprit, frozenset(inner))
        outcome = line.run(count - 1)
        last_bad = max(n for n in range(culprit + 1) if n not in line.skipped)
        first_good = min(n for n in range(culprit + 1, count) if n not in line.skipped)
        assert outcome.culprits == list(range(last_bad, first_good))
        assert outcome.good == first_good
        assert culprit in outcome.culprits


def test_a_good_end_is_newer_than_what_cannot_be_tested() -> None:
    """The oldest states do not have the test yet."""
    for count in range(3, 40):
        for culprit in range(count - 2):
            for oldest in range(culprit + 2, count):
                line = Line(count, culprit, frozenset(range(oldest, count)))
                outcome = line.run(None)
                assert outcome.culprits == [culprit]
                assert len(line.tested) <= 4 + 3 * math.ceil(math.log2(count))


def test_ends_that_are_none() -> None:
    with pytest.raises(BisectEndError, match="does not fail at 0"):
        Line(5, -1).run(4)
    with pytest.raises(BisectEndError, match="does not succeed at 3"):
        Line(5, 4).run(3)
    with pytest.raises(BisectEndError, match="at no checkpoint back to 4"):
        Line(5, 4).run(None)
    with pytest.raises(BisectEndError, match="at no checkpoint back to 0"):
        Line(1, 0).run(None)
    with pytest.raises(BisectEndError, match="does not fail"):
        Line(5, 2, frozenset([0])).run(4)
