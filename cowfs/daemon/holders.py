"""Which processes keep a mount busy.

Judged by the text of the links in /proc, so that looking causes no request to the mount.

Threading: stateless.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from cowfs.mounts import mounts, top_mount


class Holder(NamedTuple):
    """A process that uses the mount. `uses`: paths and how they are used, at most a few."""

    pid: int
    name: str
    uses: list[str]


def holders(mountpoint: str, asking: int = 0) -> list[Holder]:
    """The processes with a working directory, open file, root or mapping there.

    This process and the one that asks (a pid) are left out. Those of other users are seen only as
    root. Other mounts of the same file system, bind mounts or copies in another mount namespace,
    count as held by a process that sees them: its daemon would have to go on.
    """
    found = []
    ours = top_mount(mountpoint)
    device = ours.device if ours is not None else ""
    namespaces = {_namespace("self")}
    if others := _other_mounts("self", device, mountpoint):
        found.append(Holder(1, _name("1"), [f"bind mount {path}" for path in others[:5]]))
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in (os.getpid(), asking):
            continue
        uses = _uses(f"/proc/{entry}", mountpoint)
        if (namespace := _namespace(entry)) not in namespaces:
            namespaces.add(namespace)
            copies = _other_mounts(entry, device, "")
            uses += [f"mount in its own namespace {path}" for path in copies]
        if uses:
            found.append(Holder(int(entry), _name(entry), uses[:5]))
    return found


def _namespace(pid: str) -> str:
    """The mount namespace of a process; that of one that cannot be seen is taken for ours."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return os.readlink("/proc/self/ns/mnt")


def _other_mounts(pid: str, device: str, mountpoint: str) -> list[str]:
    """Where else a process sees the device mounted. In another namespace (`mountpoint` is "") a
    mount that follows ours goes with it."""
    found = [
        mount.mountpoint
        for mount in mounts(pid)
        if mount.device == device and not (mount.follows and not mountpoint)
    ]
    if mountpoint in found:
        found.remove(mountpoint)
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
