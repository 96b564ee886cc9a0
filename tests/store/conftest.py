"""An empty store for each test, and who writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cowfs.store import writer as writing
from cowfs.store.env import Store, create_store
from cowfs.store.writer import Writer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store without any record but its format, open for writing."""
    opened = create_store(tmp_path / "store", [])
    yield opened
    opened.close()


@pytest.fixture
def writer(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Writer]:
    """One that tries again soon when the disk was full."""
    monkeypatch.setattr(writing, "_RETRY_SECONDS", 0.01)
    made = Writer(store)
    yield made
    if made._thread.is_alive():
        made.close()
