"""Fixtures of the tests with real programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounting import Mounted
from tests.tools.tool import environment


@pytest.fixture
def workspace(mount: Callable[..., Mounted], base: Path) -> Mounted:
    """A mount over an empty directory; unmounted and verified at the end."""
    return mount(base)


@pytest.fixture
def top(workspace: Mounted) -> Path:
    """The top directory of `workspace`."""
    return workspace.mountpoint


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """An empty directory on an ordinary file system."""
    directory = tmp_path / "plain"
    directory.mkdir()
    return directory


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment for programs: an empty home outside of the mount, nothing of the user's."""
    home = tmp_path / "home"
    home.mkdir()
    return environment(home, TMPDIR=home)
