"""A shell that stands for an agent's program, and tells the daemon what it does as hooks would."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cowfs.client.rpc import Client
from tests.cli.command import Cowfs

SESSION = "5f0c12ab-0000-4000-8000-000000000001"


class Agent:
    """One that is running. Its children have its session's id in their environment, but with
    `quiet`."""

    def __init__(
        self,
        cowfs: Cowfs,
        cwd: Path,
        *,
        quiet: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        ((_, self.store),) = cowfs.mounts()
        named = {} if quiet else {"CLAUDE_CODE_SESSION_ID": SESSION}
        self.process = subprocess.Popen(
            ["bash"],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**cowfs.env, **named, **(environment or {})},
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def tells(self, event: str, **params: Any) -> Any:
        params |= {"agent": "other", "session": SESSION, "event": event, "pid": self.pid}
        with Client(str(self.store)) as client:
            return client.call("session.event", params)

    def runs(self, line: str) -> None:
        """A command to its end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\necho done\n".encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"done\n"

    def end(self) -> None:
        self.process.communicate(b"")


@contextmanager
def going_on(
    cowfs: Cowfs,
    cwd: Path,
    *,
    quiet: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Agent]:
    """A session that ends with the block."""
    agent = Agent(cowfs, cwd, quiet=quiet, environment=environment)
    try:
        agent.tells("session-start", cwd=os.fspath(cwd))
        yield agent
        agent.tells("session-end")
    finally:
        agent.end()
