"""The command in an environment of its own, and workspaces made with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Cowfs, scratch
from tests.support.mounting import fuse_missing


@pytest.fixture
def cowfs(tmp_path: Path) -> Iterator[Cowfs]:
    """The command, in this process: starting one takes longer than most of what it does. What is
    still mounted when the test ends is verified, then removed."""
    with scratch(tmp_path) as command:
        command.in_process = True
        yield command


@pytest.fixture
def own_processes(cowfs: Cowfs) -> None:
    """Each command is a process of its own: for tests of what that makes a difference to, such as
    who did something, and what has the standard streams."""
    cowfs.in_process = False


@pytest.fixture
def project(cowfs: Cowfs) -> Path:
    """A small directory that is not mounted."""
    return make_project(cowfs.top / "project")


@pytest.fixture
def mounted(cowfs: Cowfs, project: Path, needs_fuse: None) -> Path:
    """The same, mounted over itself. Commands run in it."""
    cowfs.ok("mount", project)
    cowfs.cwd = project
    return project


@pytest.fixture(scope="module")
def shared_cowfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cowfs]:
    """As `cowfs`, for a whole module."""
    with scratch(tmp_path_factory.mktemp("shared")) as command:
        yield command


@pytest.fixture(scope="module")
def workspace(shared_cowfs: Cowfs) -> Path:
    """As `mounted`, for a whole module: each test makes its own files in it."""
    return mounted_project(shared_cowfs)


@pytest.fixture
def place(workspace: Path, request: pytest.FixtureRequest) -> Path:
    """A directory of the shared workspace for one test."""
    top = workspace / str(request.node.name)
    top.mkdir()
    return top


def mounted_project(cowfs: Cowfs) -> Path:
    """A project, mounted over itself, in which the command works; without FUSE the test is
    skipped."""
    if reason := fuse_missing():
        pytest.skip(reason)
    project = make_project(cowfs.top / "project")
    cowfs.ok("mount", project)
    cowfs.cwd = project
    return project


def make_project(top: Path) -> Path:
    """A directory with a file, and a directory with another one."""
    (top / "src").mkdir(parents=True)
    (top / "readme").write_text("one\ntwo\n")
    (top / "src" / "main.c").write_text("int main;\n")
    return top
