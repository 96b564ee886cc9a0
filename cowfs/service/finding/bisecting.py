"""Finding the checkpoint that broke something: a test is run on states of one line of ancestors.

The states are in a line, the newest first: the bad end, what it was made from, and so on. Somewhere
the verdict turns from good to bad. Which state to test next, and what the answers mean, is decided
here; running the test is the caller's.

Threading: none of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from cowfs.errors import BisectEndError

S = TypeVar("S")
"""A state, as the caller names it."""


class Verdict(Enum):
    """What a test says of a state. SKIP: it cannot be told."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"


@dataclass(slots=True)
class Outcome(Generic[S]):
    """good: the newest state that is known to be good. culprits: the first bad one is among these,
    the newest first; only one unless some could not be tested."""

    good: S
    culprits: list[S] = field(default_factory=list)


Test = Callable[[S], Verdict]
Say = Callable[[int, int], None]
"""Told before each step how many states are left to test, and about how many steps."""


class Bisection(Generic[S]):
    """The search on a line of states, the newest first; the first of them is the bad end."""

    def __init__(
        self, line: Sequence[S], name: Callable[[S], str], test: Test[S], say: Say
    ) -> None:
        """name: how messages call a state."""
        self._line = line
        self._name = name
        self._test = test
        self._say = say
        self._verdicts: dict[int, Verdict] = {}

    def run(self, good: int | None) -> Outcome[S]:
        """Find the first bad one.

        good: index of the good end; None to look for one, going back in steps that double. Raises
        BisectEndError when an end is not what it should be.
        """
        if self._verdict(0) is not Verdict.BAD:
            detail = f"the command does not fail at {self._name(self._line[0])}, the bad end"
            raise BisectEndError(detail=detail)
        bad = 0
        if good is None:
            bad, good = self._search_good()
        elif self._verdict(good) is not Verdict.GOOD:
            detail = f"the command does not succeed at {self._name(self._line[good])}, the good end"
            raise BisectEndError(detail=detail)
        while (at := self._next(bad, good)) is not None:
            verdict = self._verdict(at)
            if verdict is Verdict.GOOD:
                good = at
            elif verdict is Verdict.BAD:
                bad = at
        return Outcome(self._line[good], list(self._line[bad:good]))

    def _verdict(self, at: int) -> Verdict:
        """Each state is tested once."""
        if at not in self._verdicts:
            self._verdicts[at] = self._test(self._line[at])
        return self._verdicts[at]

    def _search_good(self) -> tuple[int, int]:
        """(index of a bad one, index of a good one that is older)."""
        bad, at, last, step = 0, 0, len(self._line) - 1, 1
        while at < last:
            at = min(at + step, last)
            step *= 2
            verdict = self._verdict(at)
            if verdict is Verdict.SKIP:
                # In older ones the test itself may not be there yet: good ones are newer then.
                bad, found = self._search_between(bad, at)
                if found is not None:
                    return bad, found
            elif verdict is Verdict.BAD:
                bad = at
            else:
                return bad, at
        detail = f"the command succeeds at no checkpoint back to {self._name(self._line[last])}"
        raise BisectEndError(detail=detail)

    def _search_between(self, bad: int, skipped: int) -> tuple[int, int | None]:
        """A good one between a bad one and an older one that cannot be tested, None when none was
        met; before it the oldest bad one."""
        while skipped - bad > 1:
            middle = (bad + skipped) // 2
            verdict = self._verdict(middle)
            if verdict is Verdict.GOOD:
                return bad, middle
            if verdict is Verdict.BAD:
                bad = middle
            else:
                skipped = middle
        return bad, None

    def _next(self, bad: int, good: int) -> int | None:
        """The state between that divides those left to test best; None when there is none."""
        left = [at for at in range(bad + 1, good) if at not in self._verdicts]
        if not left:
            return None
        self._say(len(left), len(left).bit_length())
        middle = (bad + good) / 2
        return min(left, key=lambda at: (abs(at - middle), at))
