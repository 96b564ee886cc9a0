"""The sample store of the tests of `verify`."""

from __future__ import annotations

from tests.verify.conftest import sample, sound_sample

__all__ = ["sample", "sound_sample"]
