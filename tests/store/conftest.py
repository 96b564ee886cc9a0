"""An empty store for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cowfs.store.env import Store, create_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store without any record but its format, open for writing."""
    opened = create_store(tmp_path / "store", [])
    yield opened
    opened.close()
