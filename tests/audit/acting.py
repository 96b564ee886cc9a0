"""Changing a volume as the mount does: the change, and who made it."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cowfs.format import audit, keys, records
from cowfs.format.audit import AuditRecord, Operation, ProcessRecord
from cowfs.service.audit.telling import Paths
from cowfs.store.snapshot import Reader
from cowfs.volume.audit_processes import command_of
from tests.mount.calls import child_process, eventually
from tests.support.volumes import FILE, Rig

NAMES = {
    audit.MADE: "made",
    audit.WROTE: "wrote",
    audit.REMOVED: "removed",
    audit.RENAMED: "renamed",
    audit.LINKED: "linked",
    audit.ATTRIBUTES: "attributes",
    audit.EXCHANGED: "exchanged",
    audit.RESTORED: "restored",
    audit.UNDONE: "undone",
    audit.REDONE: "redone",
}


@contextmanager
def sleeper() -> Iterator[int]:
    """Another process, that has become `sleep`; its pid."""
    with child_process(["sleep", "60"]) as pid:
        # execve(2) closes the pipe that Popen waits for before it sets name and command line.
        eventually(
            lambda: (
                command_of(pid) == b"sleep\x0060\0"
                and Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
            )
        )
        yield pid


@contextmanager
def sleeper_with(environment: Mapping[str, str]) -> Iterator[int]:
    """The same with an environment of its own."""
    with subprocess.Popen(["/bin/sleep", "60"], env=environment) as process:
        try:
            eventually(lambda: command_of(process.pid) == b"/bin/sleep\x0060\0")
            yield process.pid
        finally:
            process.kill()


@dataclass
class Actor:
    """Works on a rig as the process `pid` would through a mount."""

    rig: Rig
    pid: int = 0

    def __post_init__(self) -> None:
        self.pid = self.pid or os.getpid()
        self.audit = self.rig.volume.audit

    def create(self, path: bytes, content: bytes = b"", mode: int = FILE) -> None:
        inode = self.rig.create(path, mode=mode)
        self.audit.made(self.pid, *self.rig.place(path), inode)
        if content:
            self.open(path)
            self.write(path, content)
            self.close(path)

    def mkdir(self, path: bytes) -> None:
        self.create(path, mode=stat.S_IFDIR | 0o755)

    def open(self, path: bytes) -> None:
        self.audit.opened(self.pid, self.rig.at(path).ino)

    def close(self, path: bytes) -> None:
        self.audit.closed(self.rig.at(path).ino)

    def write(self, path: bytes, content: bytes, offset: int = 0) -> None:
        """What the kernel writes back: nobody knows for whom."""
        self.rig.write(path, content, offset)
        self.audit.wrote(self.rig.at(path), len(content))

    def truncate(self, path: bytes, size: int) -> None:
        self.rig.truncate(path, size)
        self.audit.changed(self.pid, self.rig.at(path), audit.CUT)

    def chmod(self, path: bytes, mode: int) -> None:
        self.rig.chmod(path, mode)
        self.audit.changed(self.pid, self.rig.at(path), audit.MODE)

    def unlink(self, path: bytes) -> None:
        place = self.rig.place(path)
        inode = self.rig.rmdir(path) if self.rig.at(path).is_dir else self.rig.unlink(path)
        self.audit.removed(self.pid, *place, inode)

    def rename(self, path: bytes, new: bytes, flags: int = 0) -> None:
        one, two = self.rig.place(path), self.rig.place(new)
        old = self.rig.rename(path, new, flags)
        self.audit.renamed(self.pid, *one, *two, old)

    def link(self, path: bytes, new: bytes) -> None:
        inode = self.rig.link(path, new)
        self.audit.linked(self.pid, inode, *self.rig.place(new))

    def remove_tree(self, path: bytes) -> None:
        if self.rig.at(path).is_dir:
            for name in self.rig.ls(path):
                self.remove_tree(path + b"/" + name)
        self.unlink(path)


def stored(rig: Rig) -> list[AuditRecord]:
    """The audit log, oldest first, once all is committed."""
    rig.volume.sync()
    with Reader(rig.volume.store) as reader:
        return [records.decode(value, AuditRecord) for _, value in reader.scan("audit")]


def processes(rig: Rig) -> dict[int, ProcessRecord]:
    with Reader(rig.volume.store) as reader:
        return {
            keys.unpack_id(key): records.decode(value, ProcessRecord)
            for key, value in reader.scan("process")
        }


def operations(rig: Rig) -> list[tuple[AuditRecord, Operation]]:
    return [(record, operation) for record in stored(rig) for operation in record.operations]


def told(rig: Rig) -> list[tuple[str, ...]]:
    """(operation, path, second path if there is one) of the whole log."""
    out = []
    rows = operations(rig)
    with Reader(rig.volume.store) as reader:
        paths = Paths(reader)
        for record, operation in rows:
            found = [os.fsdecode(path) for path in paths.of(record, operation) if path is not None]
            out.append((NAMES[operation.code], *found))
    return out
