"""Which processes keep a mount busy.

Judged by the text of the links in /proc, so that looking causes no request to the mount.

Threading: stateless.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Holder(NamedTuple):
    """A process that uses the mount. `uses`: paths and how they are used, at most a few."""

    pid: int
    name: str
    uses: list[str]


def holders(mountpoint: str, asking: int = 0) -> list[Holder]:
    """The processes with a working directory, open file, root or mapping there.

    This process and the one that asks (a pid) are left out. Those of other users are seen only as
    root.
    """
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in (os.getpid(), asking):
            continue
        uses = _uses(f"/proc/{entry}", mountpoint)
        if uses:
            found.append(Holder(int(entry), _name(entry), uses[:5]))
    return found


def _uses(process: str, mountpoint: str) -> list[str]:
    uses = []
    for link, what in (("cwd", "working directory"), ("root", "root"), ("exe", "program")):
        path = _link(f"{process}/{link}", mountpoint)
        if path:
            uses.append(f"{what} {path}")
    try:
        descriptors = os.listdir(f"{process}/fd")
    except OSError:
        descriptors = []
    for fd in descriptors:
        path = _link(f"{process}/fd/{fd}", mountpoint)
        if path:
            uses.append(f"open file {path}")
    try:
        with open(f"{process}/maps", encoding="utf-8", errors="surrogateescape") as file:
            mapped = {line.rstrip("\n").split(None, 5)[5] for line in file if mountpoint in line}
    except (OSError, IndexError):
        mapped = set()
    uses += [f"mapping {path}" for path in sorted(mapped) if _inside(path, mountpoint)]
    return uses


def _link(path: str, mountpoint: str) -> str:
    try:
        target = os.readlink(path)
    except OSError:
        return ""
    return target if _inside(target, mountpoint) else ""


def _inside(path: str, mountpoint: str) -> bool:
    return path == mountpoint or path.startswith(mountpoint + "/")


def _name(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"


def describe(found: list[Holder]) -> str:
    """For messages: "bash (pid 12: working directory /x), ..."."""
    parts = [f"{h.name} (pid {h.pid}: {h.uses[0]})" for h in found[:8]]
    if len(found) > 8:
        parts.append(f"and {len(found) - 8} more")
    return ", ".join(parts)
