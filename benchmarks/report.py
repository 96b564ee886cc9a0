"""Tables of text, and one JSON document, out of measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stats import Summary, Verdict
from benchmarks.svg import Chart, render


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


def bytes_text(count: int) -> str:
    """A size in a fitting unit: "3.10 MiB"."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift:
            return f"{_digits(count / (1 << shift))} {unit}"
    return f"{count} B"


def spread_text(summary: Summary | None) -> str:
    """A median with the fastest and the slowest measurement: "277 ms (270-301)"; "-" for none."""
    if summary is None:
        return "-"
    scale, _ = _unit(summary.median)
    low, high = _digits(summary.low * scale), _digits(summary.high * scale)
    return f"{seconds_text(summary.median)} ({low}-{high})"


def not_measured(missing: Mapping[tuple[int, str], str] | Mapping[tuple[str, str], str]) -> str:
    """Which tools are missing, and why, each reason of a tool once."""
    lines = sorted({f"  {tool}: {why}" for (_, tool), why in missing.items()})
    return "Not measured:\n" + "\n".join(lines)


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


@dataclass(frozen=True)
class Outcome:
    """What a benchmark found, in all its forms."""

    name: str
    document: dict[str, object]
    text: str
    verdicts: Sequence[Verdict]
    charts: dict[str, Chart]
    """By the name of the picture's file, without its ending."""


def deliver(
    machine: dict[str, object],
    heading: str,
    outcomes: Sequence[Outcome],
    json_to: str | None,
    pictures: Path | None,
) -> None:
    """Print all outcomes and their bars, write the JSON document and the pictures.

    *heading*: the machine, in words. *json_to*: a file, or ``-`` for standard output; the text then
    goes to standard error, so that standard output is one document. *pictures*: a directory.
    """
    verdicts = [verdict for outcome in outcomes for verdict in outcome.verdicts]
    document: dict[str, object] = {"ok": True, "machine": machine}
    document |= {outcome.name: outcome.document for outcome in outcomes}
    document["bars"] = [verdict.document() for verdict in verdicts]
    parts = [heading]
    for outcome in outcomes:
        parts.append(f"== {outcome.name} ==\n\n{outcome.text}")
    if verdicts:
        parts.append("== bars ==\n\n" + verdicts_table(verdicts))
    print("\n\n".join(parts), file=sys.stderr if json_to == "-" else sys.stdout)
    if json_to == "-":
        print(json.dumps(document, indent=2))
    elif json_to:
        Path(json_to).write_text(json.dumps(document, indent=2) + "\n")
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
        for outcome in outcomes:
            for name, chart in outcome.charts.items():
                (pictures / f"{name}.svg").write_text(render(chart))
