"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from tests.history.reads import Reads


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Counts what is read of stores."""
    return Reads(monkeypatch)
