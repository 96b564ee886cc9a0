"""Checks of change records, of what is remembered of the base directory, and of orphans.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

import os

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.service.verify.report import NOTE, text
from cowfs.service.verify.scan import Scan
from cowfs.service.verify.values import name_fault
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot
from cowfs.types import BLOCK_SIZE
from cowfs.volume.base import STAGING, Base, fingerprint

_DIRECTORY, _REGULAR = 4, 8


def check_changes(scan: Scan) -> None:
    """Every change record belongs to a version of what it names."""
    for key, value in scan.each("change"):
        if len(key) < 17 or value:
            detail = f"its key has {len(key)} bytes, its value {len(value)}"
            scan.problem("record", "change", key.hex(), detail)
            continue
        epoch = keys.unpack_id(key)
        kind, ino, name = keys.change_parts(key)
        if kind == keys.KIND_INODE and len(key) == 17:
            thing, table = f"{ino}", "inode"
            versioned = keys.inode_key(ino, epoch)
        elif kind == keys.KIND_DIRENT and not name_fault(name):
            thing, table = f"{ino}/{text(name)}", "dirent"
            versioned = keys.dirent_key(ino, name, epoch)
        else:
            scan.problem("record", "change", key.hex(), f"it has the kind {kind}")
            continue
        scan.use(ino)
        if epoch not in scan.history.epochs or epoch == 0:
            detail = f"it belongs to epoch {epoch}, which does not exist or has no changes"
            scan.problem("record-epoch", "change", thing, detail)
        elif table not in scan.unreadable and not scan.has(table, versioned):
            scan.problem(
                "change-stray",
                "change",
                thing,
                f"epoch {epoch} has no version of this {table}",
                states=scan.history.seeing(epoch, ()),
                inode=ino,
            )


def check_base(scan: Scan) -> None:
    """What is remembered of the base fits the inodes that were made of it."""
    _base(scan)
    _origins(scan)
    for key, value in scan.each("hardlink"):
        if len(key) != 16 or len(value) != 8:
            detail = f"its key has {len(key)} bytes, its value {len(value)}"
            scan.problem("record", "hardlink", key.hex(), detail)
            continue
        ino = keys.unpack_id(value)
        scan.use(ino)
        kind = _kind(scan, ino)
        if kind == _DIRECTORY:
            detail = f"inode {ino} is a directory"
            scan.problem("hardlink", "hardlink", key.hex(), detail, inode=ino)


def _place_fault(parent: int, name: bytes) -> str:
    """What is wrong with a place in the base; while `apply` runs, things wait in its staging
    directory below the root."""
    if parent == 1 and name.startswith(STAGING + b"/"):
        name = name[len(STAGING) + 1 :]
    return name_fault(name)


def _kind(scan: Scan, ino: int) -> int | None:
    """The type of an inode in its newest version, None when it has none (left)."""
    for _, value in scan.reader.scan("inode", keys.pack_id(ino)):
        if value:
            try:
                return records.kind_of(records.unpack_inode(value).mode)
            except DamagedRecordError:
                continue
    return None


def _base(scan: Scan) -> None:
    for key, value in scan.each("base"):
        parent, name = keys.unpack_id(key), key[8:]
        thing = f"{parent}/{text(name)}"
        if fault := _place_fault(parent, name):
            scan.problem("record", "base", key.hex(), fault)
            continue
        try:
            record = records.unpack_base(value)
        except DamagedRecordError as error:
            scan.problem("record", "base", thing, error.details["detail"])
            continue
        scan.use(max(record.ino, record.content, parent))
        detail = ""
        if not scan.has("origin", keys.pack_id(parent)):
            detail = f"directory {parent} did not come from the base"
        elif record.ino:
            kind = _kind(scan, record.ino)
            if kind not in (None, record.kind):
                detail = f"it says type {record.kind}, inode {record.ino} has the type {kind}"
            elif record.content and record.kind != _REGULAR:
                detail = f"it has a content, but the type {record.kind}"
        if detail:
            scan.problem("base-entry", "base", thing, detail, inode=record.ino)


def _origins(scan: Scan) -> None:
    files = _BaseFiles(scan)
    try:
        for key, value in scan.each("origin"):
            thing = key.hex() if len(key) != 8 else f"{keys.unpack_id(key)}"
            try:
                record = records.unpack_origin(value)
            except DamagedRecordError as error:
                scan.problem("record", "origin", thing, error.details["detail"])
                continue
            if len(key) != 8:
                scan.problem("record", "origin", thing, f"its key has {len(key)} bytes, not 8")
                continue
            number = keys.unpack_id(key)
            scan.use(max(number, record.parent))
            if fault := _origin_fault(scan, number, record):
                scan.problem("origin", "origin", thing, fault, inode=number)
            elif number != 1 and (reason := files.lost(number, record)):
                _lost(scan, number, record, reason)
    finally:
        files.close()


def _origin_fault(scan: Scan, number: int, record: records.OriginRecord) -> str:
    """What cannot be so in an origin record."""
    if record.state > records.ORIGIN_LOST:
        return f"its state is {record.state}"
    if number == 1:
        return "" if (record.parent, record.name) == (0, b"") else "the root has a place"
    if fault := _place_fault(record.parent, record.name):
        return fault
    # What was lost, or saved in the store, may be so with its directory (an apply removed it).
    sealed = record.state == records.ORIGIN_DONE and _kind(scan, number) != _DIRECTORY
    away = sealed or record.state == records.ORIGIN_LOST
    if not away and not scan.has("origin", keys.pack_id(record.parent)):
        return f"directory {record.parent} did not come from the base"
    return ""


def _lost(scan: Scan, content: int, record: records.OriginRecord, reason: str) -> None:
    """Note the states that show a file whose content cannot be read any more."""
    owner = scan.owners.get(content, content)
    states = [state for state in scan.history.states if _needs_base(scan, owner, content, state[1])]
    if states:
        scan.problem(
            "content-lost",
            "origin",
            f"{content}",
            reason,
            states=states,
            inode=owner,
            severity=NOTE,
        )


def _needs_base(scan: Scan, ino: int, content: int, lineage: Lineage) -> bool:
    """Whether a state shows a block of a content that only the base file has."""
    snapshot = Snapshot(scan.reader, lineage)
    try:
        record = snapshot.inode(ino)
    except DamagedRecordError:
        return False
    if record is None or record.content != content:
        return False
    return any(
        snapshot.block_source(content, number, record.base_size)[0] is None
        for number in range((record.base_size + BLOCK_SIZE - 1) // BLOCK_SIZE)
    )


class _BaseFiles:
    """Compares base files with their fingerprints, directory by directory."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._directory: tuple[int, int | None] = (0, None)

    def close(self) -> None:
        if self._directory[1] is not None:
            os.close(self._directory[1])
        self._directory = (0, None)

    def lost(self, content: int, record: records.OriginRecord) -> str:
        """Why the base file of a content is not what was imported, "" when it is (or is stored)."""
        scan = self._scan
        if record.state == records.ORIGIN_DONE or _kind(scan, content) == _DIRECTORY:
            return ""
        if record.state == records.ORIGIN_LOST:
            return "its base file was changed outside before it was saved"
        value = scan.reader.get("base", keys.base_key(record.parent, record.name))
        try:
            entry = records.unpack_base(value) if value is not None else None
        except DamagedRecordError:
            return ""
        if entry is None or entry.content != content:
            return "another file took the place of its base file before it was saved"
        if scan.base is None:
            return ""
        found = self._stat(scan.base, record)
        if found is None:
            return ""
        if isinstance(found, str):
            return f"its base file cannot be read: {found}"
        if fingerprint(found) != (entry.dev, entry.st_ino, entry.size, entry.mtime, entry.ctime):
            return "its base file was changed outside, which was not noticed yet"
        return ""

    def _stat(self, base: Base, record: records.OriginRecord) -> os.stat_result | str | None:
        """The base file's status; the error's text, or None when its place is unknown."""
        if self._directory[0] != record.parent:
            self.close()
            path = self._path(record.parent)
            if path is None:
                return None
            try:
                self._directory = (record.parent, base.open_directory(path))
            except OSError as error:
                return error.strerror
        try:
            return os.stat(record.name, dir_fd=self._directory[1], follow_symlinks=False)
        except OSError as error:
            return error.strerror

    def _path(self, directory: int) -> bytes | None:
        """Path of a directory below the base, from its origin records."""
        parts: list[bytes] = []
        while directory != 1:
            origin = self._scan.origin(directory)
            if origin is None or len(parts) > 4096:
                return None
            parts.append(origin.name)
            directory = origin.parent
        return b"/".join(reversed(parts))


def check_orphans(scan: Scan) -> None:
    """Files that were open without a name when the last process ended."""
    for key, value in scan.each("orphan"):
        if len(key) != 8 or len(value) != 16:
            detail = f"its key has {len(key)} bytes, its value {len(value)}"
            scan.problem("record", "orphan", key.hex(), detail)
            continue
        ino, content, epoch = (keys.unpack_id(part) for part in (key, value[:8], value[8:]))
        scan.use(max(ino, content))
        owner = scan.owners.get(content, content)
        if owner != ino and scan.has_prefix("inode", keys.pack_id(owner)):
            detail = f"its content {content} belongs to inode {owner}"
            scan.problem("orphan", "orphan", f"{ino}", detail, inode=owner)
        elif epoch not in scan.history.epochs:
            detail = f"it lost its name in epoch {epoch}, which does not exist"
            scan.problem("orphan", "orphan", f"{ino}", detail)
