"""`cowfs statusline`: one line about the workspace, for the status line of an agent, or a prompt.

An agent runs it every few seconds and at every step, so it imports next to nothing, and whatever is
wrong it prints less, or nothing. It reads what the agent says on stdin for the directory.
"""

from __future__ import annotations

import os
import sys
from _signal import (  # type: ignore[import-not-found]
    ITIMER_REAL,
    SIGALRM,
    setitimer,
    signal,
)

from cowfs.cli import output
from cowfs.client import lean, places, rpc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_SECONDS = 1.0
_LONGEST_INPUT = 4 << 20


class _TooLongError(Exception):
    """The time is over."""


def run(directory: str = "") -> int:
    """Print the line; returns 0. directory: where to look first."""
    signal(SIGALRM, _too_long)
    setitimer(ITIMER_REAL, _SECONDS)
    try:
        text = line([directory, *_directories(_input())])
    except Exception:
        text = ""
    setitimer(ITIMER_REAL, 0)
    if text and sys.stdout is not None:
        try:
            os.write(1, output.printable(text).encode("utf-8", "replace") + b"\n")
        except OSError:
            pass
    return 0


def _too_long(_number: int, _frame: object) -> NoReturn:
    raise _TooLongError


def _input() -> dict[str, Any]:
    """What the agent says; {} if nobody does."""
    if sys.stdin is None or os.isatty(0):
        return {}
    data = b""
    while (part := os.read(0, 1 << 16)) and len(data) <= _LONGEST_INPUT:
        data += part
    try:
        found = lean.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _directories(said: dict[str, Any]) -> list[str]:
    inner = said.get("workspace")
    inner = inner if isinstance(inner, dict) else {}
    found = [inner.get("current_dir"), said.get("cwd"), inner.get("project_dir")]
    try:
        found.append(places.current_directory())
    except OSError:
        pass
    return [path for path in found if isinstance(path, str)]


def line(directories: list[str]) -> str:
    """What to print, "" when none of the directories is in a workspace."""
    found = [path for path in directories if path.startswith("/") and "\0" not in path]
    live = next(filter(None, map(places.find_live, found)), None)
    if live is None:
        known = next(filter(None, map(places.find, found)), None)
        return f"cowfs: {os.path.basename(known.base)} is not mounted" if known else ""
    mountpoint, store = live
    name = os.path.basename(mountpoint) or "/"
    try:
        if places.daemon_is_stopped(store):
            return f"cowfs: {name}, its daemon is stopped"
        with rpc.Client(store) as client:
            report = client.call("status")
    except (rpc.ConnectionFailedError, rpc.RpcError, _TooLongError):
        return f"cowfs: {name}, its daemon does not answer"
    return f"cowfs: {name}, {_last(report)}"


def _last(report: dict[str, Any]) -> str:
    last, changes = report["last_checkpoint"], output.counts(report["changes"])
    if last is None:
        return f"no checkpoint yet, {changes}"
    label = f" ({last['label']})" if last["label"] else ""
    when = output.age(last["time"], report["time"])
    health = "" if report["health"]["state"] == "ok" else f", {report['health']['state']}"
    return f"{last['id'][:8]}{label} {when}, {changes} since{health}"
