"""Runs the file workloads: every target in turn, in every step of every round."""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.inputs.materials import Inputs
from benchmarks.stats import Summary
from benchmarks.system import (
    BenchError,
    affinity,
    answers,
    cold_cache_obstacle,
    drop_caches,
    remove_work,
    settle,
    watchdog,
)
from benchmarks.targets import Place, Target
from benchmarks.workloads.base import Cache, Workload

T = TypeVar("T")

FAILURES = (BenchError, OSError)
"""What a workload raises on a filesystem that does not carry it."""


@dataclass(frozen=True)
class Pass:
    """One set of CPUs for clients and daemons alike."""

    name: str
    cpus: frozenset[int]

    @property
    def title(self) -> str:
        """For the head of a table."""
        numbers = ", ".join(map(str, sorted(self.cpus)))
        return f"{self.name} ({'CPU' if len(self.cpus) == 1 else 'CPUs'} {numbers})"


@dataclass(frozen=True)
class Cell:
    """One number to find: a workload on a target in a pass."""

    pass_name: str
    workload: str
    target: str


@dataclass(frozen=True)
class Missing:
    """Why a cell has no number: *word* for a table, *detail* for a reader who wants to know."""

    word: str
    detail: str

    @classmethod
    def failed(cls, error: Exception) -> Missing:
        """The target does not carry the workload."""
        return cls("FAILED", str(error))


@dataclass
class Measurements:
    """All that was measured, and why something was not."""

    seconds: dict[Cell, list[float]] = field(default_factory=lambda: defaultdict(list))
    requests: dict[Cell, list[int]] = field(default_factory=lambda: defaultdict(list))
    """How often the daemons answered meanwhile; none for a target without a daemon."""
    missing: dict[Cell, Missing] = field(default_factory=dict)
    """Why a cell lacks measurements: the first reason met."""
    notes: list[str] = field(default_factory=list)

    def summary(self, cell: Cell) -> Summary | None:
        """The measurements of one cell; None if it has none or if any of them failed."""
        return None if cell in self.missing else Summary.of(self.seconds.get(cell, ()))


@contextmanager
def work_directory(parent: Path) -> Iterator[Path]:
    """A new directory below *parent*, removed at the end; never through a live mount."""
    work = Path(tempfile.mkdtemp(prefix="cowfs-bench-", dir=parent))
    try:
        yield work
    finally:
        remove_work(work)


@dataclass
class FilesRun:
    """One invocation of ``bench files``."""

    targets: Sequence[type[Target]]
    steps: Sequence[Workload]
    passes: Sequence[Pass]
    inputs: Inputs
    work: Path
    timeout: float
    """Seconds after which a step counts as hung."""
    result: Measurements = field(default_factory=Measurements)

    def run(self, rounds: int) -> Measurements:
        """Measure *rounds* times; the passes alternate, so that a drift reaches both."""
        for number in range(rounds):
            for one in self.passes:
                with affinity(one.cpus):
                    self._round(number, one, f"round {number + 1}/{rounds}, {one.name}")
        return self.result

    def _round(self, number: int, one: Pass, label: str) -> None:
        """Open every target on a fresh directory and take them through all steps."""
        directory = self.work / f"{one.name}-{number}"
        directory.mkdir()
        with ExitStack() as stack:
            places = self._open(stack, directory, one)
            failed: set[tuple[str, str]] = set()
            for index, step in enumerate(self.steps):
                print(f"{label}: {step.title}", file=sys.stderr, flush=True)
                for target in rotated(list(places), number + index):
                    cell = Cell(one.name, step.name, target)
                    if any((target, need) in failed for need in step.needs):
                        failed.add((target, step.name))
                        self._missing(cell, Missing("-", "a step that it needs failed"))
                        continue
                    if not self._measure(cell, step, places[target]):
                        failed.add((target, step.name))
        remove_work(directory)

    def _open(self, stack: ExitStack, directory: Path, one: Pass) -> dict[str, Place]:
        places = {}
        for kind in self.targets:
            own = directory / kind.name
            own.mkdir()
            missing = None
            if obstacle := kind.obstacle():
                missing = Missing("skipped", obstacle)
            else:
                target = kind(own, self.inputs.env)
                try:
                    places[kind.name] = target.setup()
                    stack.callback(self._close, target)
                except FAILURES as error:
                    missing = Missing.failed(error)
            if missing:
                for step in self.steps:
                    self._missing(Cell(one.name, step.name, kind.name), missing)
        return places

    def _close(self, target: Target) -> None:
        """Close a target. A failure there spoils no measurement, so it is noted, not raised."""
        try:
            target.teardown()
        except FAILURES as error:
            self._note(f"{target.name}: {error}")

    def _measure(self, cell: Cell, step: Workload, place: Place) -> bool:
        """Take one measurement; returns whether the step was done."""
        obstacle = step.obstacle(self.inputs)
        if not obstacle and step.cache is Cache.COLD:
            obstacle = cold_cache_obstacle()
        if obstacle:
            self._missing(cell, Missing("skipped", obstacle))
            return False
        directory = place.root / "work"
        try:
            with watchdog(place.pids, seconds=self.timeout):
                place.check()
                directory.mkdir(exist_ok=True)
                self._prepare(step, directory, place)
                before = answers(place.pids)
                start = time.perf_counter()
                own = step.run(directory, self.inputs)
                seconds = time.perf_counter() - start if own is None else own
                requests = answers(place.pids) - before
                place.check()
                self._settle(place, cell)
        except FAILURES as error:
            self._missing(cell, Missing.failed(error))
            return False
        self.result.seconds[cell].append(seconds)
        if place.pids:
            self.result.requests[cell].append(requests)
        return True

    def _prepare(self, step: Workload, directory: Path, place: Place) -> None:
        """Bring caches into the step's stated state, with nothing left to write."""
        if step.prepare:
            step.prepare(directory, self.inputs)
        if step.cache is Cache.WARM:
            step.run(directory, self.inputs)
        settle(place.root, place.pids)
        if step.cache is Cache.COLD:
            drop_caches()
        step.warm_tool(self.inputs)
        if step.name == "untar":
            # An earlier round dropped it; the first target must not be the one to read it back.
            read_through(self.inputs.archive.path)

    def _settle(self, place: Place, cell: Cell) -> None:
        if not settle(place.root, place.pids):
            self._note(f"the daemon of {cell.target} was still busy after {cell.workload}")

    def _missing(self, cell: Cell, missing: Missing) -> None:
        self.result.missing.setdefault(cell, missing)

    def _note(self, text: str) -> None:
        if text not in self.result.notes:
            self.result.notes.append(text)


def rotated(names: Sequence[T], by: int) -> Iterable[T]:
    """*names* beginning with another one each time, so that none is always first."""
    start = by % len(names) if names else 0
    return [*names[start:], *names[:start]]


def read_through(path: Path) -> None:
    """Read a file to its end, so that the page cache holds it."""
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
