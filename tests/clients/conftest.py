"""Fixtures: a real agent in a mounted workspace.

In the environment, REAL_CLIENTS names the agents whose tests must run: what else would skip a test
of one of them fails it then. WITHOUT_CLIENTS says why there are none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from tests.cli.command import Cowfs
from tests.cli.conftest import make_project
from tests.clients.agents import Agent, Claude, Place
from tests.clients.isolation import NoRoomError, Room
from tests.clients.stub import Script, Stub
from tests.support.mounting import fuse_missing

_KEPT = ("PATH", "HOME", "XDG_DATA_HOME", "LC_ALL", "COWFS_AUTOMATIC")
"""What `cowfs` is told of the user's environment: nothing of agents, and no secrets."""
AnAgent = TypeVar("AnAgent", bound=Agent)


def need(kind: type[Agent]) -> str:
    """The program of an agent. Skips the test where it is not there or cannot be run."""

    def without(reason: str) -> NoReturn:
        if kind.client in os.environ.get("REAL_CLIENTS", "").split():
            pytest.fail(f"{kind.client} has to be tested (REAL_CLIENTS), but {reason}")
        pytest.skip(reason)

    program = os.environ.get(kind.variable)
    if not program:
        why = os.environ.get("WITHOUT_CLIENTS", "see scripts/clients")
        without(f"{kind.variable} is not set: {why}")
    if not os.access(program, os.X_OK):
        pytest.fail(f"{kind.variable} is {program}, which is no program")
    if reason := fuse_missing():
        without(reason)
    try:
        Room().close()
    except NoRoomError as error:
        without(str(error))
    return program


@contextlib.contextmanager
def at_work(kind: type[AnAgent], top: Path, script: Script) -> Iterator[AnAgent]:
    """An agent in a small project that is mounted, with a model that says what the script says.
    At the end the workspace is verified and unmounted."""
    program = need(kind)
    with contextlib.ExitStack() as stack:
        cowfs = Cowfs(top)
        cowfs.env = {name: cowfs.env[name] for name in _KEPT}
        stack.callback(cowfs.clean_up)
        room = stack.enter_context(Room())
        project = make_project(cowfs.top / "project")
        cowfs.ok("mount", project)
        cowfs.cwd = project
        stub = stack.enter_context(Stub(script, room.listener))
        agent = kind(program, Place(room, stub, cowfs, project))
        cowfs.env |= agent.places()
        cowfs.ok("hooks", "install", agent.name, "--project", "--yes")
        yield agent
        for mountpoint, _ in cowfs.mounts():
            assert cowfs.ok("verify", cwd=mountpoint)["problems"] == []


StartClaude = Callable[[Script], Claude]


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[StartClaude]:
    """claude(script): Claude Code with the hooks of cowfs."""
    with contextlib.ExitStack() as stack:

        def start(script: Script) -> Claude:
            return stack.enter_context(at_work(Claude, tmp_path, script))

        yield start
