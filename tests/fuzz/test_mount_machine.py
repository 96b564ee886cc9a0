"""System calls on a mount and on an ordinary file system; `scripts/fuzz` makes more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import mount_machine
from tests.fuzz.mount_machine import Failure
from tests.fuzz.side import Step
from tests.fuzz.traces import TRACES

RUNS = [("mount", 1), ("mount", 2), ("mount", 3), ("watch", 2), ("watch", 3)]
STEPS = 500


def _check(failure: Failure | None, again: str) -> None:
    if failure is not None:
        last = "\n".join(f"  {step!r}" for step in failure.changing[-20:])
        raise AssertionError(f"{failure}\nthe last steps:\n{last}\n{again}") from failure.error


@pytest.mark.parametrize(("kind", "seed"), RUNS)
def test_same_as_an_ordinary_file_system(
    needs_fuse: None, tmp_path: Path, kind: str, seed: int
) -> None:
    failure = mount_machine.run(seed, STEPS, kind=kind, parent=tmp_path, progress=lambda step: None)
    _check(failure, f"all of it: scripts/fuzz --kind {kind} --seed {seed} --steps {STEPS}")


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_what_failed_once(needs_fuse: None, tmp_path: Path, trace: list[Step]) -> None:
    _check(mount_machine.replay(trace, parent=tmp_path), "")
