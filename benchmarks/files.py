"""``bench files``: the report on the file workloads, and the bars they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks import bars
from benchmarks.report import spread_text, table
from benchmarks.runner import Cell, Measurements, Pass
from benchmarks.stats import Ratio, Summary, Verdict
from benchmarks.svg import Chart, Mark, Row
from benchmarks.workloads.base import Workload

BASE = bars.NATIVE
SUBJECT = bars.SUBJECT


@dataclass(frozen=True)
class FilesReport:
    """Measurements with what is made of them."""

    result: Measurements
    passes: Sequence[Pass]
    steps: Sequence[Workload]
    targets: Sequence[str]
    rounds: int

    def summary(self, one: Pass, step: str, target: str) -> Summary | None:
        """What was measured in one cell."""
        return self.result.summary(Cell(one.name, step, target))

    def ratio(self, one: Pass, step: str, target: str, base: str) -> Ratio | None:
        """One target against another in the same pass; None if either was not measured."""
        above, below = self.summary(one, step, target), self.summary(one, step, base)
        return above.over(below) if above and below else None

    def verdicts(self) -> list[Verdict]:
        """Every bar that belongs to what was to be measured."""
        if SUBJECT not in self.targets:
            return []
        passes = {one.name: one for one in self.passes}

        def value(one: str, step: str, target: str, base: str) -> float | None:
            ratio = self.ratio(passes[one], step, target, base)
            return ratio.median if ratio else None

        def requests(one: str, step: str) -> float | None:
            counts = self.result.requests.get(Cell(one, step, SUBJECT))
            return median(counts) if counts else None

        titles = {step.name: step.title for step in self.steps}
        return self._broken() + bars.of_files(value, requests, list(passes), self.targets, titles)

    def _broken(self) -> list[Verdict]:
        """A workload that fails on cowfs, and not on a plain directory, is a missed bar."""
        titles = {step.name: step.title for step in self.steps}
        return [
            Verdict(f"{titles[cell.workload]} ({cell.pass_name})", "works", None, False)
            for cell, missing in self.result.missing.items()
            if cell.target == SUBJECT and cell.workload in titles and missing.word == "FAILED"
            if Cell(cell.pass_name, cell.workload, BASE) not in self.result.missing
        ]

    def charts(self) -> dict[str, Chart]:
        """A picture of each pass, by the name of its file."""
        others = [target for target in self.targets if target != BASE]
        charts = {}
        for one in self.passes:
            rows = []
            for step in self.steps:
                ratios = {t: self.ratio(one, step.name, t, BASE) for t in others}
                marks = {t: Mark(r.median, r.low, r.high) for t, r in ratios.items() if r}
                rows.append(Row(step.title, marks))
            title = f"File workloads, {one.title}: time as a multiple of {BASE}"
            unit = f"times {BASE} (less is better); lines: fastest to slowest of {self.rounds}"
            charts[f"files-{one.name}"] = Chart(title, unit, others, rows, line=1.0)
        return charts

    def text(self, source: str) -> str:
        """The whole report for people."""
        parts = [f"{source}; medians of {self.rounds}, ratios to {BASE} (fastest-slowest)"]
        parts += [f"{one.title}\n{self._table(one)}" for one in self.passes]
        details = self._details()
        if details:
            parts.append("Not measured:\n" + "\n".join(f"  {line}" for line in details))
        if self.result.notes:
            parts.append("Notes:\n" + "\n".join(f"  {line}" for line in self.result.notes))
        return "\n\n".join(parts)

    def _details(self) -> list[str]:
        """Why cells are empty, each reason of a target once."""
        shown = {step.name: step.title for step in self.steps}
        lines: dict[str, list[str]] = {}
        for cell, missing in self.result.missing.items():
            if cell.workload in shown:
                line = f"{cell.target} ({cell.pass_name}): {missing.detail}"
                lines.setdefault(line, []).append(shown[cell.workload])
        return [f"{line} [{', '.join(steps)}]" for line, steps in lines.items()]

    def _table(self, one: Pass) -> str:
        others = [target for target in self.targets if target != BASE]
        rows = []
        for step in self.steps:
            base = spread_text(self.summary(one, step.name, BASE))
            cells = [self._cell(one, step.name, target) for target in others]
            rows.append([step.title, base, *cells])
        return table(["", BASE, *others], rows)

    def _cell(self, one: Pass, step: str, target: str) -> str:
        ratio = self.ratio(one, step, target, BASE)
        if ratio:
            return str(ratio)
        missing = self.result.missing.get(Cell(one.name, step, target))
        return missing.word if missing else "-"

    def document(self) -> dict[str, object]:
        """The JSON form."""
        cells = []
        for one in self.passes:
            for step in self.steps:
                for target in self.targets:
                    cells.append(self._cell_document(one, step, target))
        return {
            "passes": [{"name": one.name, "cpus": sorted(one.cpus)} for one in self.passes],
            "rounds": self.rounds,
            "results": cells,
            "notes": self.result.notes,
        }

    def _cell_document(self, one: Pass, step: Workload, target: str) -> dict[str, object]:
        cell: dict[str, object] = {
            "pass": one.name,
            "workload": step.name,
            "title": step.title,
            "cache": step.cache.value,
            "target": target,
        }
        summary = self.summary(one, step.name, target)
        if summary:
            cell |= summary.document()
            cell["requests"] = self.result.requests.get(Cell(one.name, step.name, target))
        else:
            missing = self.result.missing.get(Cell(one.name, step.name, target))
            cell["reason"] = missing.detail if missing else None
        ratio = self.ratio(one, step.name, target, BASE)
        return cell | {"ratio": ratio.document() if ratio else None}
