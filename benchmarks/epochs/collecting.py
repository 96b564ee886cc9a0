"""How long `cowfs gc` holds up who uses the mount.

A loop makes, reads and removes a small file, without fsync, for as long as a collection runs in
another process, and as long again while nothing runs. The longest turn of each is what counts.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks import bars
from benchmarks.epochs.workspace import Workspace
from benchmarks.report import table
from benchmarks.stats import Verdict
from benchmarks.system import BenchError

KEPT = 10
"""The newest checkpoints, which the collection keeps."""
REST_SECONDS = 0.0005
"""Between two turns: a program that does nothing else would be measured against itself."""


@dataclass
class Pauses:
    """Seconds of the turns, with a collection and without. removed: checkpoints that went."""

    collecting: list[float] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)
    removed: int = 0
    seconds: float = 0.0

    def verdict(self) -> Verdict:
        """The longest turn while a collection runs against its limit."""
        value = max(self.collecting) * 1e3 if self.collecting else None
        what = f"longest pause while `cowfs gc` removes {self.removed:,} checkpoints"
        return Verdict.below(what, value, bars.GC_PAUSE_MS, " ms")

    def text(self) -> str:
        """The table for people."""
        rows = [
            (name, f"{len(turns):,}", *(f"{seconds * 1e3:.2f} ms" for seconds in _spread(turns)))
            for name, turns in (("while it collects", self.collecting), ("at rest", self.quiet))
            if turns
        ]
        heads = ("a small file made, read, removed", "turns", "median", "99.9 %", "longest")
        done = f"{self.removed:,} checkpoints removed in {self.seconds:.1f} s"
        return f"`cowfs gc`: {done}\n\n{table(heads, rows)}"

    def document(self) -> dict[str, object]:
        """The JSON form; times are in seconds."""
        return {
            "removed": self.removed,
            "seconds": self.seconds,
            "turns_collecting": self.collecting,
            "turns_at_rest": self.quiet,
        }


def _spread(turns: list[float]) -> tuple[float, float, float]:
    ordered = sorted(turns)
    return ordered[len(ordered) // 2], ordered[int((len(ordered) - 1) * 0.999)], ordered[-1]


def _turns(space: Workspace, go_on: Callable[[], bool]) -> list[float]:
    path = space.mount.base / "turn"
    found: list[float] = []
    for number in itertools.count():
        if not go_on():
            return found
        content = f"turn {number}\n"
        start = time.perf_counter()
        path.write_text(content)
        same = path.read_text() == content
        path.unlink()
        found.append(time.perf_counter() - start)
        if not same:
            raise BenchError("a file that was just written has another content")
        time.sleep(REST_SECONDS)
    return found


def measure(space: Workspace) -> Pauses:
    """Collect all but the newest checkpoints, and look how it is for others meanwhile."""
    pauses = Pauses()
    space.settle()
    failed: list[Exception] = []

    def collect() -> None:
        try:
            said = space.call("gc", "--keep-last", str(KEPT))
            pauses.removed = len(said["removed"])
        except BenchError as error:
            failed.append(error)

    thread = threading.Thread(target=collect)
    start = time.perf_counter()
    thread.start()
    pauses.collecting = _turns(space, thread.is_alive)
    thread.join()
    pauses.seconds = time.perf_counter() - start
    if failed:
        raise failed[0]
    space.settle()
    end = time.perf_counter() + pauses.seconds
    pauses.quiet = _turns(space, lambda: time.perf_counter() < end)
    return pauses
