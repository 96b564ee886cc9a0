"""The sample store: built once, copied for each test that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.sample import Sample, build


@pytest.fixture(scope="session")
def sound_sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """A sound store, not to be written."""
    return build(tmp_path_factory.mktemp("sample"))


@pytest.fixture
def sample(sound_sample: Sample, tmp_path: Path) -> Sample:
    """A store of this test's own."""
    return sound_sample.copy(tmp_path / "store")
