"""Medians and spreads of repeated measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median


@dataclass(frozen=True)
class Summary:
    """Measurements of one thing, in seconds."""

    seconds: tuple[float, ...]

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Summary | None:
        """A summary of *seconds*, or None when nothing was measured."""
        return cls(tuple(seconds)) if seconds else None

    @property
    def median(self) -> float:
        """The middle measurement."""
        return median(self.seconds)

    @property
    def low(self) -> float:
        """The fastest measurement."""
        return min(self.seconds)

    @property
    def high(self) -> float:
        """The slowest measurement."""
        return max(self.seconds)

    def over(self, base: Summary) -> Ratio:
        """This against the median of *base*."""
        return Ratio(self.median / base.median, self.low / base.median, self.high / base.median)

    def document(self) -> dict[str, object]:
        """The JSON form: all measurements, and what is made of them."""
        return {
            "seconds": list(self.seconds),
            "median": self.median,
            "min": self.low,
            "max": self.high,
        }


@dataclass(frozen=True)
class Ratio:
    """How many times a base's median: of the median, the fastest and the slowest measurement."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f}-{self.high:.2f})"

    def document(self) -> dict[str, float]:
        """The JSON form."""
        return {"median": self.median, "min": self.low, "max": self.high}


def geometric(values: Sequence[float | None]) -> float | None:
    """The geometric mean; None if there are no values or one of them is missing."""
    known = [value for value in values if value is not None]
    return geometric_mean(known) if known and len(known) == len(values) else None


@dataclass(frozen=True)
class Verdict:
    """A bar, what was measured against it, and whether it is met (None: not measured)."""

    what: str
    bar: str
    value: float | None
    met: bool | None

    @classmethod
    def below(cls, what: str, value: float | None, limit: float, unit: str) -> Verdict:
        """Hold *value* against "less than *limit*"; both in *unit* ("x", " ms")."""
        met = None if value is None else value < limit
        return cls(what, f"< {limit:g}{unit}", value, met)

    @classmethod
    def at_most(cls, what: str, value: float | None, limit: float, unit: str) -> Verdict:
        """Hold *value* against "at most *limit*"."""
        met = None if value is None else value <= limit
        return cls(what, f"<= {limit:g}{unit}", value, met)

    @classmethod
    def at_least(cls, what: str, value: float | None, limit: float, unit: str) -> Verdict:
        """Hold *value* against "at least *limit*"."""
        met = None if value is None else value >= limit
        return cls(what, f">= {limit:g}{unit}", value, met)

    @property
    def word(self) -> str:
        """The verdict for a table."""
        return {True: "met", False: "MISSED", None: "not measured"}[self.met]

    def document(self) -> dict[str, object]:
        """The JSON form."""
        return {"what": self.what, "bar": self.bar, "value": self.value, "met": self.met}
