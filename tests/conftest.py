"""Fixtures that all tests share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support import mounting
from tests.support.mounting import Mounted

MountFunction = Callable[..., Mounted]


@pytest.fixture
def needs_fuse() -> None:
    """Skips the test where nothing can be mounted."""
    if reason := mounting.fuse_missing():
        pytest.skip(reason)


@pytest.fixture
def mounted(needs_fuse: None) -> Callable[..., AbstractContextManager[Mounted]]:
    """The context manager `tests.support.mounting.mounted`, for tests that mount several times."""
    return mounting.mounted


@pytest.fixture
def mount(needs_fuse: None) -> Iterator[MountFunction]:
    """mount(base, store=None, at=None): mounts until the end of the test."""
    with contextlib.ExitStack() as stack:

        def enter(base: Path, store: Path | None = None, at: Path | None = None) -> Mounted:
            return stack.enter_context(mounting.mounted(base, store, at))

        yield enter


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """An empty directory to make a workspace of."""
    directory = tmp_path / "base"
    directory.mkdir()
    return directory
