"""Fixtures of the tests at the limits of the system."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Cowfs
from tests.limits.disks import MIB, small_disk
from tests.support import mounting


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MiB of its own."""
    with small_disk(tmp_path, 32 * MIB) as at:
        yield at


@pytest.fixture
def cowfs(tmp_path: Path) -> Iterator[Cowfs]:
    """The command; at the end nothing is mounted."""
    if reason := mounting.fuse_missing():
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        commands = Cowfs(tmp_path)
        stack.callback(commands.clean_up)
        yield commands
