"""Running programs, and looking at checkpoints as a user does, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounting import Mounted

SECONDS = 100
_COWFS = "import sys; from cowfs.__main__ import main; sys.exit(main())"
_KEPT = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH")

Words = Sequence[str | os.PathLike[str]]


def need(program: str) -> str:
    """The path of a program; skips the test where it is not installed."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def environment(home: Path, **more: str | os.PathLike[str]) -> dict[str, str]:
    """Surroundings that do not depend on the user's settings; `home` need not exist."""
    return {
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
        "HOME": os.fspath(home),
        "LC_ALL": "C.UTF-8",
        **{name: os.fspath(value) for name, value in more.items()},
    }


@contextlib.contextmanager
def started(
    words: Words,
    cwd: Path,
    env: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.STDOUT,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process group of its own, which is ended with the block."""
    with subprocess.Popen(
        words,
        cwd=cwd,
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            # The group may live on without its leader; it is gone when no process is left in it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run(
    words: Words,
    cwd: Path,
    env: Mapping[str, str],
    *,
    code: int = 0,
    seconds: float = SECONDS,
    stdin: bytes = b"",
) -> str:
    """A program to its end: what it printed, errors included. It must end with `code`."""
    with started(words, cwd, env, stdin=subprocess.PIPE) as process:
        raw, _ = process.communicate(stdin, timeout=seconds)
    out = os.fsdecode(raw)
    assert process.returncode == code, f"{words} ended with {process.returncode}:\n{out}"
    return out


def cowfs(mounted: Mounted, *arguments: str | os.PathLike[str]) -> dict[str, Any]:
    """A command of cowfs that succeeds; its JSON document."""
    words = [sys.executable, "-c", _COWFS, "-C", mounted.mountpoint, *arguments, "--json"]
    done = subprocess.run(words, cwd="/", capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def export(mounted: Mounted, checkpoint: str, to: Path) -> Path:
    """The whole state of a checkpoint as plain files in `to`; nothing may be missing."""
    document = cowfs(mounted, "export", checkpoint, to)
    assert not document.get("problems"), document
    return to


def changes(mounted: Mounted) -> tuple[int, int, int]:
    """(created, modified, deleted) since the last checkpoint, with all that the kernel holds."""
    counts = mounted.call("status", flush=True)["changes"]
    return counts["created"], counts["modified"], counts["deleted"]
