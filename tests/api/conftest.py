"""Workspaces of a scratch home, for this process and for the command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cowfs import Workspace
from tests.cli.command import Cowfs, scratch
from tests.cli.conftest import make_project
from tests.support.mounting import fuse_missing


@pytest.fixture
def cowfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cowfs]:
    """The command; this process has the same home."""
    with scratch(tmp_path) as command:
        for name in ("HOME", "XDG_DATA_HOME"):
            monkeypatch.setenv(name, command.env[name])
        yield command


@pytest.fixture
def project(cowfs: Cowfs) -> Path:
    """A small directory that is not mounted: readme and src/main.c."""
    return make_project(cowfs.top / "project")


@pytest.fixture
def workspace(needs_fuse: None, project: Path) -> Workspace:
    """The same, mounted over itself."""
    return Workspace.mount(project, automatic=False)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A mounted workspace for a whole module: each test makes its own files in it."""
    if reason := fuse_missing():
        pytest.skip(reason)
    with scratch(tmp_path_factory.mktemp("shared")) as command, pytest.MonkeyPatch.context() as env:
        for name in ("HOME", "XDG_DATA_HOME"):
            env.setenv(name, command.env[name])
        mounted = Workspace.mount(make_project(command.top / "project"), automatic=False)
        yield mounted
