"""The sample store of the tests of `verify`, and the command."""

from __future__ import annotations

from tests.cli.conftest import cowfs, project
from tests.verify.conftest import sample, sound_sample

__all__ = ["cowfs", "project", "sample", "sound_sample"]
