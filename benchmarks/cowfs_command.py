"""The ``cowfs`` command as the benchmarks use it: one JSON document for each call."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.system import (
    BenchError,
    Env,
    ToolError,
    mounts_below,
    poll,
    run_tool,
    unmount,
)
from cowfs.client.rpc import Client, ConnectionFailedError, RpcError

COMMAND_SECONDS = 120.0
"""When a command counts as hung."""
DAEMON_SECONDS = 60.0
"""How long a daemon may take to end after its filesystem is unmounted."""

Document = dict[str, Any]


@dataclass(frozen=True)
class Mount:
    """A mounted workspace."""

    base: Path
    store: Path
    pid: int
    seconds: float
    """How long the whole mount command took."""

    def checkpoints(self, edit: Callable[[int], None], count: int) -> None:
        """Make *count* checkpoints, each after ``edit(number)``, over the daemon's socket.

        For making long histories only: what is measured goes through the command.
        """
        try:
            with Client(str(self.store), timeout=COMMAND_SECONDS) as daemon:
                for number in range(count):
                    edit(number)
                    daemon.call("checkpoint", {"message": f"history {number}"})
        except (ConnectionFailedError, RpcError) as error:
            raise BenchError(f"checkpoint over the socket: {error}") from error


@dataclass(frozen=True)
class Cowfs:
    """The installed command and the environment it runs in."""

    program: Path
    env: Env

    @classmethod
    def installed(cls, env: Env) -> Cowfs:
        """The command beside the running interpreter, else the first on the search path."""
        beside = Path(sys.executable).with_name("cowfs")
        found = beside if beside.exists() else shutil.which("cowfs")
        if not found:
            raise BenchError("cowfs is not installed (scripts/setup installs it)")
        return cls(Path(found), env)

    def call(self, directory: Path, command: str, *arguments: str) -> Document:
        """Run one command on the workspace *directory* and return its JSON document."""
        return self.timed(directory, command, *arguments)[1]

    def timed(self, directory: Path, command: str, *arguments: str) -> tuple[float, Document]:
        """Like :meth:`call`, with the seconds from starting the process to its end."""
        argv: list[str | Path] = [self.program, "-C", directory, command, *arguments, "--json"]
        start = time.perf_counter()
        try:
            said = run_tool(argv, env=self.env, timeout=COMMAND_SECONDS)
        except ToolError as error:
            try:
                problem = json.loads(error.output)["error"]
            except (ValueError, KeyError):
                raise error from None
            message = f"cowfs {command}: {problem['code']}: {problem['message']}"
            raise BenchError(message) from error
        seconds = time.perf_counter() - start
        document: Document = json.loads(said)
        return seconds, document

    @contextmanager
    def mounted(self, base: Path, store: Path, *, automatic: bool = False) -> Iterator[Mount]:
        """Mount *base* over itself until the body ends; nothing is applied to it.

        *automatic*: with the automatic checkpoints that a user has, where others would not be
        counted.
        """
        pid = 0
        options = [] if automatic else ["--no-automatic"]
        where = [str(base), "--store", str(store)]
        try:
            seconds, said = self.timed(base.parent, "mount", *where, *options)
            pid = int(said["pid"])
            yield Mount(base, store, pid, seconds)
        finally:
            self._end(base, pid)

    def _end(self, base: Path, pid: int) -> None:
        """Unmount *base* and see its daemon *pid* (0 if it never told) out, by force if need be."""
        problem = None
        if mounts_below(base):
            try:
                self.call(base.parent, "unmount", str(base), "--no-apply")
            except BenchError as error:
                problem = error
                unmount(base, lazy=True)
        if pid and not poll(lambda: not _alive(pid), seconds=DAEMON_SECONDS):
            problem = problem or BenchError(f"the daemon {pid} did not end; it was killed")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if problem:
            raise problem


def _alive(pid: int) -> bool:
    """Whether the process runs; one that ended but that nobody has waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
