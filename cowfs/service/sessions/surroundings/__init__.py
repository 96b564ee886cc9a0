"""What is around the files at a checkpoint: processes, their open files, ports, locks, environment.

Nothing here waits for the mount: who asks may be what the mount waits for.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from cowfs.format.sessions import (
    ContextRecord,
    FileLock,
    ListeningPort,
    OpenFile,
    RunningProcess,
)
from cowfs.mount.nodes import INO_MASK
from cowfs.mounts import top_mount
from cowfs.service.engine import Engine
from cowfs.service.sessions.surroundings import descriptors, locks, ports, processes
from cowfs.service.sessions.surroundings.descriptors import Found, Opened, Places
from cowfs.service.sessions.surroundings.environment import without_secrets
from cowfs.service.sessions.surroundings.processes import Machine
from cowfs.volume.posix import PosixError
from cowfs.volume.volume import Volume

SECONDS = 0.06
"""For looking at what processes have open, which takes some milliseconds for a hundred of them: a
machine with thousands must not keep an agent waiting."""
MOST_PROCESSES = 300
MOST_FILES = 1000
MOST_PORTS = 200
MOST_LOCKS = 500
_DELETED = b" (deleted)"
_READ_WRITE = 2
_BY_MAPPING = -1
"""Place of the descriptor of a file that is only mapped."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The fields of a `ContextRecord` (format/sessions.py) that are about them."""

    environment: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    processes: tuple[RunningProcess, ...] = ()
    files: tuple[OpenFile, ...] = ()
    ports: tuple[ListeningPort, ...] = ()
    locks: tuple[FileLock, ...] = ()
    missing: tuple[str, ...] = ()

    def added_to(self, context: ContextRecord) -> ContextRecord:
        """A context that knows of them, too."""
        return msgspec.structs.replace(
            context,
            environment=self.environment,
            hidden=self.hidden,
            processes=self.processes,
            files=self.files,
            ports=self.ports,
            locks=self.locks,
            missing=(*context.missing, *self.missing),
        )


def look_around(
    engine: Engine,
    root: int,
    environment: Mapping[str, str],
    *,
    thorough: bool = True,
    without: Sequence[int] = (),
) -> Surroundings:
    """What the processes below `root` (0: nobody knows) have open and wait for, and who else has
    files of the workspace open.

    environment: of whoever asks, secrets and all; empty: the one that `root` was started with.
    thorough: False for the environment and the processes below `root` alone, which is quick.
    without: processes that are not told of, such as the one that asks.
    """
    missing: list[str] = []
    if not environment and root:
        try:
            environment = processes.variables(processes.raw_environment(root))
        except OSError as error:
            missing.append(f"the environment of process {root}: {error.strerror}")
    kept = without_secrets(environment)
    missing += kept.missing
    seen = processes.machine()
    for pid in without:
        seen.pop(pid, None)
    tree = processes.below(seen, root)
    if root and not tree:
        missing.append(f"process {root}: it is gone")
    around = _Around(engine, seen, tree, missing)
    if thorough:
        around.look()
    told = around.told()
    return Surroundings(
        kept.variables,
        kept.hidden,
        tuple(told),
        tuple(around.files),
        tuple(around.ports),
        tuple(around.locks),
        tuple(missing),
    )


class _Around:
    """One look. tree: pids below the one that it is about; missing: what is added to."""

    def __init__(self, engine: Engine, seen: Machine, tree: list[int], missing: list[str]) -> None:
        self._volume = engine.volume
        self._engine = engine
        self._seen = seen
        self._tree = tree
        self._missing = missing
        self._others: set[int] = set()
        self._directories: dict[int, bytes] = {}
        self.files: list[OpenFile] = []
        self.ports: list[ListeningPort] = []
        self.locks: list[FileLock] = []

    def look(self) -> None:
        """Fill the lists."""
        mountpoint = self._engine.mountpoint()
        mount = top_mount(mountpoint) if mountpoint else None
        device = mount.device if mount is not None else ""
        places = Places(device) if device else None
        inside = set(self._tree)
        pids = self._tree + [p for p in self._seen if p not in inside and p != os.getpid()]
        most = MOST_FILES if device and self._engine.handles() else 0
        found = descriptors.look(pids, places, inside, most, time.monotonic() + SECONDS)
        self._directories = found.directories
        if found.left:
            self._missing.append(f"what {found.left} processes have open: there was no time")
        if found.cut:
            self._missing.append(f"more than {MOST_FILES} open files")
        if most:
            self._find_files(found, device)
            self._find_locks(found, device)
        self._others |= found.directories.keys() | {file.pid for file in self.files}
        self._others &= self._seen.keys()
        descriptors.sockets(found, self._others)
        self.ports = ports.listening(found.sockets, MOST_PORTS + 1)
        self._cut(self.ports, MOST_PORTS, "ports")

    def _find_files(self, found: Found, device: str) -> None:
        opened = [file for file in found.files if 0 < file.ino <= INO_MASK]
        writers = self._engine.call(self._volume.audit.writers)
        left = writers.keys() - {file.ino for file in opened}
        owners = {pid for ino in left for pid in writers[ino]} & self._seen.keys()
        mapped = descriptors.mapped(sorted(owners), device, left) if left else []
        names = self._names({file.ino for file in opened} | {ino for _, ino in mapped})
        for file in opened:
            path = _path(file, names[file.ino])
            self.files.append(OpenFile(file.pid, file.fd, file.ino, path, file.offset, file.flags))
        for pid, ino in mapped:
            self.files.append(OpenFile(pid, _BY_MAPPING, ino, names[ino] or b"", 0, _READ_WRITE))
        self.files.sort(key=lambda file: (file.pid, file.fd, file.ino))

    def _names(self, inodes: set[int]) -> dict[int, bytes | None]:
        return self._engine.call(lambda: _names(self._volume, inodes)) if inodes else {}

    def _find_locks(self, found: Found, device: str) -> None:
        paths = {file.ino: file.path for file in self.files}
        locked = set()
        for file in found.files:
            for kind, mode, pid, ino, start, end in locks.parse(file.locks, device):
                if ino in paths:
                    # Who has taken it may have left it to a process that it started.
                    owner = pid if pid in self._seen else file.pid
                    locked.add(FileLock(owner, ino, paths[ino], kind, mode, start, end))
        self.locks = sorted(locked, key=lambda lock: (lock.path, lock.start, lock.pid))
        self._cut(self.locks, MOST_LOCKS, "locks")

    def _cut(self, found: list[ListeningPort] | list[FileLock], most: int, what: str) -> None:
        if len(found) > most:
            del found[most:]
            self._missing.append(f"more than {most} {what}")

    def told(self) -> list[RunningProcess]:
        """The processes: the tree, then others that have to do with the workspace."""
        inside = set(self._tree)
        pids = self._tree + sorted(self._others - inside)
        if len(pids) > MOST_PROCESSES:
            self._missing.append(f"{len(pids) - MOST_PROCESSES} more processes")
        return processes.described(self._seen, pids[:MOST_PROCESSES], self._directories)


def _names(volume: Volume, inodes: Iterable[int]) -> dict[int, bytes | None]:
    """The path of each inode now, None of one that has no name any more."""
    found: dict[int, bytes | None] = {}
    for ino in inodes:
        try:
            inode = volume.main.inode(ino)
            found[ino] = None if inode.orphan_epoch else volume.audit.path_of(inode)
        except PosixError:
            found[ino] = None
    return found


def _path(file: Opened, name: bytes | None) -> bytes:
    """The kernel knows which of several names was opened, unless that one is gone."""
    if name is None:
        return b""
    return name if file.path.endswith(_DELETED) else file.path
