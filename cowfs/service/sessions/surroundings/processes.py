"""Processes, from /proc: which there are, which belong together, what one is doing.

A process may end at any moment; what is not there any more is left out.

Threading: pure functions on /proc.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from cowfs.format.sessions import RunningProcess
from cowfs.volume.audit_processes import Seen, command_of, look_at, shown

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_DEEPEST = 64
_INIT = 1
_ENVIRONMENT_BYTES = 1 << 20
_SAME_NS = 2_000_000_000
"""So much may the start of one process differ between two looks: the clock is set now and then."""

Machine = Mapping[int, Seen]
"""All processes that can be seen, by pid."""


def machine() -> dict[int, Seen]:
    """What runs now."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (seen := look_at(int(name))) is not None:
            found[int(name)] = seen
    return found


def below(seen: Machine, root: int) -> list[int]:
    """A process and all that descend from it, parents first; nothing when it is not there."""
    if root not in seen:
        return []
    children: dict[int, list[int]] = {}
    for pid, process in seen.items():
        children.setdefault(process.parent, []).append(pid)
    found, at = [root], 0
    while at < len(found):
        found += sorted(children.get(found[at], ()))
        at += 1
    return found


def ancestors(pid: int) -> Iterable[tuple[int, Seen]]:
    """A process and those above it, below the first one of the machine."""
    for _ in range(_DEEPEST):
        seen = look_at(pid) if pid > _INIT else None
        if seen is None:
            return
        yield pid, seen
        pid = seen.parent


def working_directory(pid: int) -> bytes:
    """b"" when it cannot be seen."""
    try:
        return os.readlink(b"/proc/%d/cwd" % pid)
    except OSError:
        return b""


def started(seen: Seen) -> int:
    """When a process was started, ns since 1970."""
    boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return boot + seen.start * _TICK_NS


def described(
    seen: Machine, pids: Iterable[int], directories: Mapping[int, bytes]
) -> list[RunningProcess]:
    """Those that can be told about. directories: working directories that are known already."""
    found = []
    for pid in pids:
        process = seen[pid]
        command = shown(command_of(pid)) or process.name + b"\0"
        cwd = directories.get(pid) or working_directory(pid)
        found.append(RunningProcess(pid, process.parent, started(process), command, cwd))
    return found


def is_running(process: RunningProcess) -> bool:
    """Whether a process that a checkpoint tells of is still there, and the same."""
    seen = look_at(process.pid)
    return seen is not None and abs(started(seen) - process.started) < _SAME_NS


def raw_environment(pid: int) -> bytes:
    """The environment that a process was started with, as /proc has it. Raises OSError."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read(_ENVIRONMENT_BYTES)


def variables(raw: bytes) -> dict[str, str]:
    """Names and values of an environment; what is no variable is left out."""
    found: dict[str, str] = {}
    for row in raw.split(b"\0"):
        name, is_one, value = row.partition(b"=")
        if is_one and name:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found
