"""Pictures of results: dots on a logarithmic scale, as SVG, readable in light and in dark.

A row for each thing that was measured, a mark for each who did it, and a line through the mark from
the fastest to the slowest measurement. Marks differ in shape as well as in colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH = 900
LEFT = 240
"""Where the scale begins; row labels are to its left."""
RIGHT = 30
ROW = 22
LETTER = 7.0
"""Width of a letter in a legend, roughly; fonts differ."""

LIGHT = ("#0b62c4", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#0f766e", "#be185d")
DARK = ("#6cb2ff", "#ff9a5c", "#5fd38a", "#c99bff", "#e5c04b", "#4fd1c5", "#ff8ac0")


@dataclass(frozen=True)
class Mark:
    """One measurement: the median with its spread, in the chart's unit."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """One line of a chart: marks by the name of their series; what was not measured is absent."""

    label: str
    marks: Mapping[str, Mark] = field(default_factory=dict)


@dataclass(frozen=True)
class Chart:
    """What to draw."""

    title: str
    unit: str
    """What the numbers below the scale mean."""
    series: Sequence[str]
    """Names in the order of colours; the first one is drawn on top."""
    rows: Sequence[Row]
    line: float | None = None
    """A value that is marked with a line, such as 1 where that is native."""


def _style() -> str:
    light = "".join(f".s{i}{{stroke:{c}}}.s{i}.f{{fill:{c}}}" for i, c in enumerate(LIGHT))
    dark = "".join(f".s{i}{{stroke:{c}}}.s{i}.f{{fill:{c}}}" for i, c in enumerate(DARK))
    return (
        ".bg{fill:#fff}text{fill:#1f2328}.dim{fill:#59636e}"
        ".grid{stroke:#d1d9e0}.line{stroke:#59636e;stroke-dasharray:4 3}.band{fill:#f6f8fa}"
        ".w{stroke-width:2;opacity:.6}.f{stroke-width:1}"
        f"{light}"
        "@media(prefers-color-scheme:dark){"
        ".bg{fill:#0d1117}text{fill:#e6edf3}.dim{fill:#9198a1}"
        ".grid{stroke:#3d444d}.line{stroke:#9198a1}.band{fill:#151b23}"
        f"{dark}}}"
    )


def _shape(index: int, x: float, y: float) -> str:
    """A filled mark at a place."""
    kind = f'class="s{index % len(LIGHT)} f"'
    size = 5.0
    match index % 4:
        case 0:
            return f'<circle {kind} cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
        case 1:
            return f'<rect {kind} x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'
        case 2:
            points: tuple[tuple[float, float], ...] = (
                (x, y - size),
                (x + size, y + 4),
                (x - size, y + 4),
            )
        case _:
            points = ((x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y))
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
    return f'<polygon {kind} points="{path}"/>'


@dataclass(frozen=True)
class Scale:
    """A logarithmic scale from values to places."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> Scale:
        """One that has room for *values*, beginning and ending at a tick."""
        known = [value for value in values if value > 0] or [1.0]
        low, high = min(known), max(known)
        step = cls._step(low, high)
        start = step ** math.floor(math.log(low, step) + 1e-9)
        end = step ** math.ceil(math.log(high, step) - 1e-9)
        return cls(start, end if end > start else start * step)

    @staticmethod
    def _step(low: float, high: float) -> int:
        return 2 if high / low <= 300 else 10

    def place(self, value: float) -> float:
        """The x of *value*; what lies outside is drawn at the edge."""
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return LEFT + min(share, 1.0) * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> list[float]:
        """Powers of two, or of ten where that would be many."""
        step = self._step(self.low, self.high)
        count = round(math.log(self.high / self.low, step))
        return [self.low * step**i for i in range(count + 1)]


def _number(value: float) -> str:
    """A short text without an exponent; "3.8 k" would need a legend."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def render(chart: Chart) -> str:
    """The chart as an SVG document, ending with a newline."""
    values = [
        number
        for row in chart.rows
        for mark in row.marks.values()
        for number in (mark.value, mark.low, mark.high)
    ]
    if chart.line:
        values.append(chart.line)
    scale = Scale.around(values)
    legend, top = _legend(chart.series)
    bottom = top + ROW * len(chart.rows)
    height = bottom + 46
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-labelledby="title" font-family="system-ui, sans-serif" font-size="13">',
        f'<title id="title">{escape(chart.title)}</title>',
        f"<style>{_style()}</style>",
        f'<rect class="bg" width="{WIDTH}" height="{height}"/>',
        f'<text x="16" y="26" font-size="16" font-weight="600">{escape(chart.title)}</text>',
        *legend,
    ]
    for number in range(0, len(chart.rows), 2):
        y = top + ROW * number
        parts.append(f'<rect class="band" y="{y}" width="{WIDTH}" height="{ROW}"/>')
    for tick in scale.ticks():
        x = scale.place(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(
            f'<text class="dim" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" '
            f'font-size="11">{_number(tick)}</text>'
        )
    if chart.line:
        x = scale.place(chart.line)
        parts.append(f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
    for number, row in enumerate(chart.rows):
        parts += _row(row, chart.series, scale, top + ROW * number + ROW / 2)
    parts.append(
        f'<text class="dim" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{bottom + 36}" '
        f'text-anchor="middle">{escape(chart.unit)}</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(series: Sequence[str]) -> tuple[list[str], int]:
    """Names of the series with their marks, in as many lines as it takes; and where rows begin."""
    parts, x, y = [], 22.0, 48
    for index, name in enumerate(series):
        width = 34 + LETTER * len(name)
        if x + width > WIDTH:
            x, y = 22.0, y + 20
        parts.append(_shape(index, x, y))
        parts.append(f'<text x="{x + 11:.0f}" y="{y + 4}">{escape(name)}</text>')
        x += width
    return parts, y + 18


def _row(row: Row, series: Sequence[str], scale: Scale, y: float) -> list[str]:
    parts = [f'<text x="{LEFT - 14}" y="{y + 4:.1f}" text-anchor="end">{escape(row.label)}</text>']
    # The first series last, on top of the others.
    for index, name in reversed(list(enumerate(series))):
        mark = row.marks.get(name)
        if mark is None:
            continue
        low, high = scale.place(mark.low), scale.place(mark.high)
        kind = f"s{index % len(LIGHT)}"
        parts.append(
            f'<line class="{kind} w" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_shape(index, scale.place(mark.value), y))
    return parts
