"""Records whose checksum is wrong: what they are of, and who is hit.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.service.verify.history import State
from cowfs.service.verify.report import HEAD, NOTE
from cowfs.service.verify.scan import Scan
from cowfs.service.verify.sessions import hit
from cowfs.store import sums

_VERSIONED = {"inode", "dirent", "link", "xattr", "extent"}
_SESSIONS = {"session", "transcript", "piece", "context"}
_DETAIL = "its checksum is wrong: the value, the key or the checksum was changed"


def report_checksums(scan: Scan) -> None:
    """Report what the other checks came across. The last of them: now it is known which states and
    paths there are."""
    for table, key in scan.falsified:
        thing = keys.thing(table, key)
        if table.encode() + b"\0" + key in scan.lost:
            states = _states(scan, table, key)
            scan.problem(
                "record-lost",
                table,
                thing,
                "it was damaged and is lost; using it is an error",
                states=states,
                paths=_paths(scan, table, key, states),
                severity=NOTE,
            )
        elif scan.report.room("record-checksum"):
            states = _states(scan, table, key)
            scan.problem(
                "record-checksum",
                table,
                thing,
                _DETAIL,
                states=states,
                checkpoints=_checkpoints(scan, table, key),
                paths=_paths(scan, table, key, states),
            )


def _states(scan: Scan, table: str, key: bytes) -> list[State]:
    """The states that show it."""
    history = scan.history
    if table in _VERSIONED and len(key) >= 16:
        epoch = keys.epoch_of(key)
        if epoch not in history.epochs:
            return []
        others = [e for e, _ in scan.versions(table, key[:-8])]
        return history.seeing(epoch, others)
    if table == "change" and len(key) >= 8:
        epoch = keys.unpack_id(key)
        return [state for state in history.states if state[1].visible(epoch)]
    return []


def _checkpoints(scan: Scan, table: str, key: bytes) -> list[str]:
    """The checkpoints that are hit, for records that have no states."""
    if table == "checkpoint":
        return [keys.thing(table, key)]
    if table in _SESSIONS and scan.reader.store.tables.keys() >= _SESSIONS:
        return hit(scan, table, key)
    if table in ("label", "epoch"):
        found = []
        for name, value in scan.reader.scan("checkpoint"):
            try:
                record = records.decode(value, records.CheckpointRecord)
            except DamagedRecordError:
                continue
            if key in (record.label.encode(), keys.pack_id(record.epoch)):
                found.append(name.decode("latin-1"))
        return found
    return [HEAD] if table == "branch" else []


def _paths(scan: Scan, table: str, key: bytes, states: list[State]) -> list[bytes]:
    """The paths that are hit, in these states; of what has none, in all."""
    if len(key) < 8:
        return []
    number, states = keys.unpack_id(key), states or scan.history.states
    try:
        if table == "dirent" and len(key) >= 18:
            return scan.path_in(number, keys.dirent_name(key), states)
        if table == "link" and len(key) >= 26:
            return scan.path_in(*keys.link_parts(key), states)
        if table == "base":
            return scan.path_in(number, key[8:], states)
        if table == "change" and len(key) >= 17:
            kind, ino, name = keys.change_parts(key)
            if kind == keys.KIND_DIRENT:
                return scan.path_in(ino, name, states)
            return scan.paths(ino, states)
        if table in ("extent", "origin"):
            return scan.paths(scan.owners.get(number, number), states)
        if table in ("inode", "xattr", "orphan"):
            return scan.paths(number, states)
    except DamagedRecordError:
        pass
    return []


def report_sums(scan: Scan) -> None:
    """Report tables that have not the records that they had, unless something else about them was
    reported."""
    if scan.reader.get("meta", sums.KEPT) is None:
        if next(scan.reader.scan("meta", sums.PREFIX), None) is not None:
            scan.problem("record-count", "meta", "sums", "it is missing")
        return
    hurt = {problem.table for problem in scan.report.problems} | {t for t, _ in scan.falsified}
    for table, found in scan.sums.items():
        if table in hurt:
            continue
        told = dict(scan.reader.scan("meta", sums.PREFIX + table.encode()))
        for name in sorted(told.keys() | found.changes.keys()):
            count, total = sums.unpack(told.get(name) or sums.pack(0, 0)) or (-1, -1)
            here, added = found.changes.get(name, (0, 0))
            if count != here:
                check, detail = "record-count", f"it has {here} records, it had {count}"
            elif total != added:
                check, detail = "record-sum", "one of its records is another one than it was"
            else:
                continue
            epoch = keys.epoch_of(name) if table in sums.VERSIONED else None
            thing = "table" if epoch is None else f"epoch {epoch}"
            states = [s for s in scan.history.states if epoch is not None and s[1].visible(epoch)]
            scan.problem(check, table, thing, detail, states=states)
