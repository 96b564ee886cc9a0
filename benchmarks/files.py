"""``bench files``: the report on the file workloads, and the bars they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.report import spread_text, table, verdicts_table
from benchmarks.runner import Cell, Measurements, Pass
from benchmarks.stats import Ratio, Summary, Verdict
from benchmarks.workloads import Workload

BASE = "native"
SUBJECT = "cowfs"


@dataclass(frozen=True)
class Bar:
    """``cowfs`` may take at most *limit* times what *base* takes in the pass *pass_name*."""

    pass_name: str
    workloads: tuple[str, ...]
    base: str
    limit: float


WRITES = ("untar", "cp-a", "git-add")
READS = ("grep-warm", "grep-cold", "git-status", "git-status-cold")
BARS = (
    Bar("pinned", WRITES, BASE, 9.0),
    Bar("pinned", READS, BASE, 7.0),
    Bar("free", WRITES + READS, "bindfs", 1.0),
)
"""The first bar of the project, with a Python daemon on one CPU with its client."""


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
        found: list[Verdict] = []
        if SUBJECT not in self.targets:
            return found
        for one in self.passes:
            for bar in (bar for bar in BARS if bar.pass_name == one.name):
                for step in (step for step in self.steps if step.name in bar.workloads):
                    ratio = self.ratio(one, step.name, SUBJECT, bar.base)
                    what = f"{step.title} ({one.name})"
                    value = ratio.median if ratio else None
                    found.append(Verdict.at_most(what, value, bar.limit, bar.base))
        return found

    def text(self, source: str) -> str:
        """The whole report for people."""
        parts = [f"{source}; medians of {self.rounds}, ratios to {BASE} (fastest-slowest)"]
        parts += [f"{one.title}\n{self._table(one)}" for one in self.passes]
        if verdicts := self.verdicts():
            parts.append(verdicts_table(verdicts))
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
            "bars": [verdict.document() for verdict in self.verdicts()],
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
        else:
            missing = self.result.missing.get(Cell(one.name, step.name, target))
            cell["reason"] = missing.detail if missing else None
        ratio = self.ratio(one, step.name, target, BASE)
        return cell | {"ratio": ratio.document() if ratio else None}
