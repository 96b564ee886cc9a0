"""A workspace and agents that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Cowfs, scratch
from tests.cli.conftest import mounted_project
from tests.mcp.agent import Agent, agent


@pytest.fixture(scope="module")
def cowfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cowfs]:
    """The command, for a whole module."""
    with scratch(tmp_path_factory.mktemp("mcp")) as command:
        command.env.pop("CLAUDE_PROJECT_DIR", None)
        yield command


@pytest.fixture(scope="module")
def workspace(cowfs: Cowfs) -> Path:
    """A mounted workspace; each test makes its own files in it."""
    return mounted_project(cowfs)


@pytest.fixture(scope="module")
def bot(cowfs: Cowfs, workspace: Path) -> Iterator[Agent]:
    """An agent whose server was started without any option."""
    with agent(cowfs, workspace, "mcp") as found:
        yield found


@pytest.fixture
def start(cowfs: Cowfs) -> Iterator[Callable[..., Agent]]:
    """start(cwd, *options, env={}): another one, until the end of the test."""
    with ExitStack() as stack:

        def started(cwd: Path, *options: str, **named: Any) -> Agent:
            return stack.enter_context(agent(cowfs, cwd, *options, **named))

        yield started
