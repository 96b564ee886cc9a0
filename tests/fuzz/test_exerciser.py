"""Content of files under random work (`scripts/fuzz --kind file` runs more of it)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import files

SEEDS = (1, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_file(needs_fuse: None, tmp_path: Path, seed: int) -> None:
    error = files.run_alone(seed, 900, parent=tmp_path, progress=lambda step: None)
    if error is not None:
        raise error


def test_several_processes(needs_fuse: None, tmp_path: Path) -> None:
    error = files.run_together(1, 12, parent=tmp_path, progress=lambda turn: None)
    if error is not None:
        raise error
