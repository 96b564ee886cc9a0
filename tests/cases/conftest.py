"""Workspaces for the scenarios, made and driven with the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.cases.workspace")

from tests.cases.workspace import Workspace  # noqa: E402
from tests.cli.command import Cowfs  # noqa: E402
from tests.support.mounting import fuse_missing  # noqa: E402

NewWorkspace = Callable[..., Workspace]


@contextmanager
def commands(top: Path) -> Iterator[Cowfs]:
    """The command for what lies below `top`. What is still mounted at the end is verified, and
    no daemon may have met a defect."""
    if reason := fuse_missing():
        pytest.skip(reason)
    cowfs = Cowfs(top)
    cowfs.in_process = True
    try:
        yield cowfs
        for mountpoint, store in cowfs.mounts():
            assert cowfs.ok("verify", cwd=mountpoint)["problems"] == []
            assert "Traceback" not in (store / "daemon.log").read_text(errors="replace")
    finally:
        cowfs.clean_up()


@pytest.fixture
def cowfs(tmp_path: Path) -> Iterator[Cowfs]:
    with commands(tmp_path) as command:
        yield command


@pytest.fixture
def project(cowfs: Cowfs) -> Path:
    """An empty directory that is not mounted yet."""
    directory = cowfs.top / "project"
    directory.mkdir()
    return directory


@pytest.fixture
def space(cowfs: Cowfs, project: Path) -> Workspace:
    """`project`, with a file in it, mounted over itself."""
    (project / "kept").write_text("kept\n")
    return Workspace(cowfs, project)
