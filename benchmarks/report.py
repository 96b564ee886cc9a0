"""Tables of text, and one JSON document, out of measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.stats import Summary, Verdict


def _unit(seconds: float) -> tuple[float, str]:
    """What to multiply *seconds* by to read it easily, and what that is called."""
    for scale, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * scale >= 1:
            return scale, unit
    return 1e6, "us"


def _digits(number: float) -> str:
    """Three significant digits, never an exponent."""
    return f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2}f}"


def seconds_text(seconds: float) -> str:
    """A duration in a fitting unit: "277 ms"."""
    scale, unit = _unit(seconds)
    return f"{_digits(seconds * scale)} {unit}"


def spread_text(summary: Summary | None) -> str:
    """A median with the fastest and the slowest measurement: "277 ms (270-301)"; "-" for none."""
    if summary is None:
        return "-"
    scale, _ = _unit(summary.median)
    low, high = _digits(summary.low * scale), _digits(summary.high * scale)
    return f"{seconds_text(summary.median)} ({low}-{high})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first one flush left, the others flush right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for line in lines:
        first, *others = (
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        text.append("  ".join([first, *others]).rstrip())
    text.insert(1, "-" * max(map(len, text)))
    return "\n".join(text)


def verdicts_table(verdicts: Sequence[Verdict]) -> str:
    """What is held against which bar, and whether it is met."""
    rows = [
        (
            verdict.what,
            "-" if verdict.value is None else f"{verdict.value:.2f}",
            verdict.bar,
            verdict.word,
        )
        for verdict in verdicts
    ]
    return table(("bar", "measured", "wanted", ""), rows)


def deliver(document: dict[str, object], text: str, destination: str | None) -> None:
    """Print *text*, and write *document* to *destination*: a file, or ``-`` for standard output.

    With ``-`` the text goes to standard error, so that standard output is one JSON document.
    """
    if destination == "-":
        print(text, file=sys.stderr)
        json.dump(document, sys.stdout, indent=2)
        print()
        return
    print(text)
    if destination:
        Path(destination).write_text(json.dumps(document, indent=2) + "\n")
