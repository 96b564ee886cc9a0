"""What processes have open: files of the workspace, with offsets, and sockets.

Judged by the links in /proc/PID/fd and by what the kernel says of each descriptor (proc_pid_fdinfo
(5)): nothing here causes a request to the mount, which might wait for whoever asks.

Threading: pure functions on /proc.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cowfs.mounts import mounts

_LINE = 4096
_SOCKET = b"socket:["


class Place(NamedTuple):
    """Where some processes see the file system: at `mountpoint` the directory `root` of it."""

    mountpoint: bytes
    root: bytes

    def inside(self, path: bytes) -> bytes | None:
        """A path relative to the top of the file system; None when it lies elsewhere."""
        if path == self.mountpoint:
            return self.root
        if not path.startswith(self.mountpoint + b"/"):
            return None
        rest = path[len(self.mountpoint) + 1 :]
        return self.root + b"/" + rest if self.root else rest


class Places:
    """Where processes see a file system (device: major:minor), which can be in several places and
    mount namespaces."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._known: dict[bytes, dict[bytes, Place]] = {}

    def of(self, pid: int) -> dict[bytes, Place]:
        """By the number of the mount; empty for a process that cannot be looked at."""
        try:
            namespace = os.readlink(b"/proc/%d/ns/mnt" % pid)
        except OSError:
            return {}
        found = self._known.get(namespace)
        if found is None:
            found = self._known[namespace] = {
                mount.number.encode(): Place(
                    os.fsencode(mount.mountpoint.rstrip("/")), os.fsencode(mount.root.strip("/"))
                )
                for mount in mounts(str(pid))
                if mount.device == self._device
            }
        return found


class Opened(NamedTuple):
    """A descriptor of a file of the workspace. path: relative to the top, as the kernel has it; it
    says so at the end when that name is gone. locks: rows as in proc_locks(5)."""

    pid: int
    fd: int
    ino: int
    path: bytes
    offset: int
    flags: int
    locks: tuple[bytes, ...]


@dataclass(slots=True)
class Found:
    """files: descriptors of the workspace. sockets: inode numbers by pid. directories: working
    directories in the workspace, as they are called there, by pid. cut: whether there were more
    than `most` files. left: how many processes there was no time for."""

    files: list[Opened] = field(default_factory=list)
    sockets: dict[int, list[bytes]] = field(default_factory=dict)
    directories: dict[int, bytes] = field(default_factory=dict)
    cut: bool = False
    left: int = 0


def look(
    pids: Sequence[int],
    places: Places | None,
    wanted: Collection[int],
    most: int,
    until: float,
) -> Found:
    """What processes have open. places: of the workspace, None for no interest in it. wanted: whose
    sockets are looked for. most: files; 0 when it is known that none is open. until: when to end,
    by the monotonic clock; those that come first are looked at first."""
    found = Found()
    for number, pid in enumerate(pids):
        if time.monotonic() > until:
            found.left = len(pids) - number
            break
        here = places.of(pid) if places is not None else {}
        if here:
            directory = _link(b"/proc/%d/cwd" % pid)
            if any(place.inside(directory) is not None for place in here.values()):
                found.directories[pid] = directory
        if most or pid in wanted:
            _look_at(found, pid, here if most else {}, most, with_sockets=pid in wanted)
    return found


def sockets(found: Found, pids: Iterable[int]) -> None:
    """Look for sockets of processes that turned out to be of interest."""
    for pid in pids:
        if pid not in found.sockets:
            _look_at(found, pid, {}, 0, with_sockets=True)


def _look_at(
    found: Found, pid: int, here: dict[bytes, Place], most: int, *, with_sockets: bool
) -> None:
    if not (here or with_sockets):
        return
    top = b"/proc/%d/fd" % pid
    try:
        names = os.listdir(top)
    except OSError:
        return  # it ended, or belongs to somebody else
    if with_sockets:
        found.sockets[pid] = []
    tops = tuple(place.mountpoint for place in here.values())
    for name in names:
        target = _link(top + b"/" + name)
        if with_sockets and target.startswith(_SOCKET):
            found.sockets[pid].append(target[len(_SOCKET) : -1])
        elif tops and target.startswith(tops):
            opened = _opened(pid, int(name), target, here)
            if opened is not None and len(found.files) < most:
                found.files.append(opened)
            elif opened is not None:
                found.cut = True


def _opened(pid: int, fd: int, target: bytes, here: dict[bytes, Place]) -> Opened | None:
    """What the kernel says of a descriptor; None when it is none of the workspace."""
    told: dict[bytes, bytes] = {}
    locks = []
    for line in _read(b"/proc/%d/fdinfo/%d" % (pid, fd)).split(b"\n"):
        name, _, value = line.partition(b":\t")
        if name == b"lock":
            locks.append(value)
        else:
            told[name] = value.strip()
    place = here.get(told.get(b"mnt_id", b""))
    path = place.inside(target) if place is not None else None
    if path is None:
        return None
    return Opened(
        pid,
        fd,
        int(told.get(b"ino", b"0")),
        path,
        int(told.get(b"pos", b"0")),
        int(told.get(b"flags", b"0"), 8),
        tuple(locks),
    )


def mapped(pids: Iterable[int], device: str, inodes: Collection[int]) -> list[tuple[int, int]]:
    """(pid, inode) of files that are mapped, among some: a mapping needs no descriptor."""
    major, _, minor = device.partition(":")
    name = b"%02x:%02x" % (int(major), int(minor))
    found = []
    for pid in pids:
        seen = set()
        for line in _read(b"/proc/%d/maps" % pid, whole=True).split(b"\n"):
            fields = line.split(None, 5)
            if len(fields) > 4 and fields[3] == name and int(fields[4]) in inodes:
                seen.add(int(fields[4]))
        found += [(pid, ino) for ino in sorted(seen)]
    return found


def _link(path: bytes) -> bytes:
    try:
        return os.readlink(path)
    except OSError:
        return b""


def _read(path: bytes, *, whole: bool = False) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read() if whole else file.read(_LINE)
    except OSError:
        return b""
