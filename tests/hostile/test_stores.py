"""Stores that somebody made, or that were damaged: whoever opens them ends with a result or an
error, and in time."""

from __future__ import annotations

from pathlib import Path

from tests.hostile import stores

COUNT = 150
"""More by `python -m tests.hostile.stores --count N`."""


def test_bytes_changed_at_random(fast_path: Path) -> None:
    """Nobody is ended by a signal, meets another exception, or waits for ever; and both happens
    that can: some are refused, some work."""
    (fast_path / "sound").mkdir()
    counts, wrong = stores.run(fast_path, range(COUNT))
    assert wrong == []
    assert set(counts) == {"verify: done", "verify: refused", "use: done", "use: refused"}
