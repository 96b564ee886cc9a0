"""The `cowfs` command as a process of its own, in an environment of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from cowfs.__main__ import main
from cowfs.client import places
from tests.support.mounting import remove_mounts

_SECONDS = 60
_MAIN = "import sys; from cowfs.__main__ import main; sys.exit(main())"


@dataclass(frozen=True)
class Result:
    """What a command did."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return os.fsdecode(self.raw)

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        assert self.raw.count(b"\n") == 1, f"not one document: {self.out!r} {self.err!r}"
        found = json.loads(self.raw)
        assert isinstance(found, dict)
        return found


class Cowfs:
    """Runs commands. `top`: everything that a test makes lies below it.

    The user's directories (HOME, XDG_DATA_HOME) are below `top`, too. cwd: where commands run.
    in_process: whether they run in this process instead of their own, which is quicker.
    """

    def __init__(self, top: Path) -> None:
        self.top = top.resolve()
        self.cwd = self.top
        self.in_process = False
        self.home = self.top / "home"
        self.home.mkdir()
        self.env = os.environ | {
            "HOME": str(self.home),
            "XDG_DATA_HOME": str(self.top / "data"),
            "LC_ALL": "C.UTF-8",
        }
        self.env.pop("COWFS_DEBUG", None)

    def argv(self, *arguments: str | Path) -> list[str]:
        """What to execute."""
        return [sys.executable, "-c", _MAIN, *[os.fspath(word) for word in arguments]]

    def start(self, *arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
        """A command that is not waited for; the caller ends it."""
        defaults = {"cwd": self.cwd, "env": self.env}
        return subprocess.Popen(self.argv(*arguments), **{**defaults, **options})

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> Result:
        """A command to its end."""
        if self.in_process:
            return self._run_here(*arguments, cwd=cwd or self.cwd)
        with self.start(
            *arguments,
            cwd=cwd or self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                out, err = process.communicate(timeout=_SECONDS)
            except BaseException:
                process.kill()
                raise
        text = os.fsdecode(err)
        assert "Traceback" not in text, text
        return Result(process.returncode, out, text)

    def _run_here(self, *arguments: str | Path, cwd: Path) -> Result:
        raw, raw_err = io.BytesIO(), io.BytesIO()
        out = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
        err = io.TextIOWrapper(raw_err, encoding="utf-8", write_through=True)
        before = os.getcwd()
        argv = ["cowfs", *[os.fspath(word) for word in arguments]]
        try:
            os.chdir(cwd)
            with (
                mock.patch.dict(os.environ, self.env, clear=True),
                mock.patch.object(sys, "argv", argv),
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
            ):
                try:
                    code = main()
                except SystemExit as ending:
                    code = int(ending.code or 0)
        finally:
            os.chdir(before)
        text = os.fsdecode(raw_err.getvalue())
        assert "Traceback" not in text, text
        return Result(code, raw.getvalue(), text)

    def ok(self, *arguments: str | Path, cwd: Path | None = None) -> dict[str, Any]:
        """A command that succeeds, with --json: its document."""
        command, *rest = arguments
        result = self.run(command, "--json", *rest, cwd=cwd)
        assert result.code == 0, (arguments, result)
        document = result.document
        assert document["ok"] is True
        return document

    def says(self, *arguments: str | Path, cwd: Path | None = None) -> str:
        """A command that succeeds: what it prints for people."""
        result = self.run(*arguments, cwd=cwd)
        assert result.code == 0, (arguments, result)
        return result.out

    def fails(self, *arguments: str | Path, cwd: Path | None = None) -> dict[str, Any]:
        """A command that fails, both ways: its error.

        For people it prints nothing on stdout, and message and hint on stderr.
        """
        for_people = self.run(*arguments, cwd=cwd)
        at = 2 if arguments and arguments[0] == "-C" else 0
        with_json = [*arguments[: at + 1], "--json", *arguments[at + 1 :]]
        for_programs = self.run(*with_json, cwd=cwd)
        assert for_people.code == for_programs.code != 0, (for_people, for_programs)
        document = for_programs.document
        assert document["ok"] is False
        error = document["error"]
        assert isinstance(error, dict)
        assert error["exit_code"] == for_programs.code
        assert error["code"].startswith("COWFS_")
        assert for_people.raw == b""
        lines = for_people.err.splitlines()
        assert lines[-2].startswith("cowfs: "), for_people.err
        assert lines[-1].startswith("  hint: "), for_people.err
        return error

    def mounts(self) -> list[tuple[Path, Path]]:
        """(mountpoint, store) of what is mounted below `top`."""
        found = [(Path(at), Path(store)) for at, store in places.mounts()]
        return [row for row in found if row[0].is_relative_to(self.top)]

    def pid(self, store: Path) -> int:
        """The pid of a store's daemon."""
        return int((store / "daemon.pid").read_text())

    def kill(self, store: Path) -> None:
        """End a daemon as a crash does. Its dead mount stays."""
        kill(self.pid(store), signal.SIGKILL)

    def clean_up(self) -> None:
        """No mount and no daemon is left."""
        for mountpoint, store in self.mounts():
            try:
                pid = self.pid(store)
            except (OSError, ValueError):
                pid = 0
            if pid and os.fsencode(store) in _command_line(pid):
                kill(pid, signal.SIGTERM)
            remove_mounts(mountpoint)


@contextlib.contextmanager
def scratch(top: Path) -> Iterator[Cowfs]:
    """The command below `top`. What is still mounted when a test that did not fail ends is
    verified, then removed."""
    command = Cowfs(top)
    try:
        yield command
        for mountpoint, _ in command.mounts():
            assert command.ok("verify", cwd=mountpoint)["problems"] == []
    finally:
        command.clean_up()


def kill(pid: int, number: int) -> None:
    """Send a signal to a daemon (no child of ours) and wait for its end."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, number)
        if not select.select([process], [], [], 20)[0]:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [], 20)
    finally:
        os.close(process)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
