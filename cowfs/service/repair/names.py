"""Names: directory entries and links from each other, link counts, and change records from both.

An entry is told three times: by the directory (`dirent`), by the inode (`link`), and by the type
in the inode. What two of them say is taken for true; a name is rather brought back than dropped.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.service.repair.bench import REBUILT, RESTORED, Bench
from cowfs.service.verify.report import text
from cowfs.service.verify.values import damaged_dirent_key, damaged_link_key
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot

_DIRECTORY = 4
_NAMES = {"link-mirror", "dirent-inode", "inode-links", "directory-parent", "record"}
_COUNTS = {"file-nlink", "directory-nlink"}
_CHANGES = {"change-missing", "change-stray", "record", "record-epoch"}


def mend_names(bench: Bench) -> bool:
    """Repair names, counts and change records, one after the other; whether anything was done."""
    done = False
    if bench.checks & _NAMES:
        _entries_from_links(bench)
        done |= bench.apply()
        links_from_entries(bench)
        done |= bench.apply()
    if bench.checks & _COUNTS:
        _counts(bench)
        done |= bench.apply()
    if bench.checks & _CHANGES:
        _stray_changes(bench)
        _missing_changes(bench)
        done |= bench.apply()
    return done


def _inode(bench: Bench, ino: int, lineage: Lineage) -> records.InodeRecord | None:
    try:
        return Snapshot(bench.reader, lineage).inode(ino)
    except DamagedRecordError:
        return None


def _changed_name(bench: Bench, epoch: int, parent: int, name: bytes) -> None:
    if epoch:
        bench.put("change", keys.change_dirent_key(epoch, parent, name), b"")


# -- entries and links ------------------------------------------------------------------------


def _entries_from_links(bench: Bench) -> None:
    """Bring back entries that only their inode knows; drop links that say what is not so."""
    for key, value in bench.reader.scan("link"):
        if damaged_link_key(key, value) or keys.epoch_of(key) not in bench.scan.history.epochs:
            bench.delete("link", key)
            bench.did(REBUILT, "link", key.hex(), "dropped: links follow from directory entries")
            continue
        ino, (parent, name), epoch = keys.unpack_id(key), keys.link_parts(key), keys.epoch_of(key)
        lineage = bench.scan.history.judged(epoch)
        if lineage is not None and _is_shown(bench, "link", key, lineage):
            thing = f"{parent}/{text(name)}"
            if value:
                _live_link(bench, key, ino, parent, name, lineage, thing)
            else:
                _dead_link(bench, key, ino, parent, name, lineage, thing)


def _is_shown(bench: Bench, table: str, key: bytes, lineage: Lineage) -> bool:
    """Whether a version is the one of its thing that a lineage sees."""
    epoch = keys.epoch_of(key)
    if lineage.head == epoch:
        return True
    versions = bench.scan.versions(table, key[:-8])
    return next((e for e, _ in versions if lineage.visible(e)), None) == epoch


def _live_link(
    bench: Bench, key: bytes, ino: int, parent: int, name: bytes, lineage: Lineage, thing: str
) -> None:
    epoch = keys.epoch_of(key)
    entry_key = keys.dirent_key(parent, name, epoch)
    entry = bench.get("dirent", entry_key)
    target = _inode(bench, ino, lineage)
    kind = records.kind_of(target.mode) if target is not None else 0
    wanted = records.pack_dirent(ino, kind)
    if entry == wanted:
        if bench.get("link", key) != bytes((kind,)):
            bench.put("link", key, bytes((kind,)))
            bench.did(REBUILT, "link", thing, f"its type is that of inode {ino}", [name])
        return
    above = _inode(bench, parent, lineage)
    lives = target is not None and above is not None and stat.S_ISDIR(above.mode)
    if lives and not _is_sound(bench, entry, lineage, target):
        bench.put("dirent", entry_key, wanted)
        _changed_name(bench, epoch, parent, name)
        bench.put("link", key, bytes((kind,)))
        paths = bench.scan.path_in(parent, name, [("", lineage)])
        bench.did(RESTORED, "dirent", thing, f"it is a name of inode {ino}", paths)
    elif target is not None:
        bench.delete("link", key)
        bench.did(REBUILT, "link", thing, f"dropped: the directory has no such name of inode {ino}")


def _is_sound(
    bench: Bench, entry: bytes | None, lineage: Lineage, target: records.InodeRecord | None
) -> bool:
    """Whether an entry may stay that says something else than a link does."""
    if entry is None or (entry and len(entry) != 9):
        return False
    if not entry:
        # A name that went, or a value that was cut off? A directory needs its one name.
        return target is None or not stat.S_ISDIR(target.mode)
    ino, kind = records.unpack_dirent(entry)
    record = _inode(bench, ino, lineage)
    return record is not None and records.kind_of(record.mode) == kind


def _dead_link(
    bench: Bench, key: bytes, ino: int, parent: int, name: bytes, lineage: Lineage, thing: str
) -> None:
    """The inode says that a name of it is gone."""
    epoch = keys.epoch_of(key)
    found = Snapshot(bench.reader, lineage).newest("dirent", keys.dirent_prefix(parent, name))
    if found is None or len(found[1]) != 9 or keys.unpack_id(found[1]) != ino:
        return
    if _inode(bench, ino, lineage) is None:
        bench.put("dirent", keys.dirent_key(parent, name, epoch), records.WHITEOUT)
        _changed_name(bench, epoch, parent, name)
        bench.did(REBUILT, "dirent", thing, f"removed, as inode {ino} is")
    else:
        bench.delete("link", key)
        bench.did(REBUILT, "link", thing, f"the directory still has this name of inode {ino}")


def links_from_entries(bench: Bench) -> None:
    """Every entry has its link, and every name that went took it along."""
    for parent, name, versions in _entries(bench):
        for at, (epoch, value) in enumerate(versions):
            lineage = bench.scan.history.judged(epoch)
            key = keys.dirent_key(parent, name, epoch)
            if lineage is None or not _is_shown(bench, "dirent", key, lineage):
                continue
            thing, ino = f"{parent}/{text(name)}", 0
            if value:
                ino, kind = records.unpack_dirent(value)
                key = keys.link_key(ino, parent, name, epoch)
                if bench.get("link", key) != bytes((kind,)):
                    bench.put("link", key, bytes((kind,)))
                    bench.did(REBUILT, "link", thing, f"the directory has it for inode {ino}")
            before = next((v for e, v in versions[at + 1 :] if lineage.visible(e)), b"")
            gone = keys.unpack_id(before) if before else 0
            if gone and gone != ino:
                prefix = keys.link_prefix(gone, parent, name)
                found = Snapshot(bench.reader, lineage).newest("link", prefix)
                if found and found[1]:
                    bench.put("link", keys.link_key(gone, parent, name, epoch), records.WHITEOUT)
                    bench.did(REBUILT, "link", thing, f"no name of inode {gone} any more")


def _entries(bench: Bench) -> Iterator[tuple[int, bytes, list[tuple[int, bytes]]]]:
    """(directory, name, versions with their epochs, newest first), those that make sense."""
    thing, versions = b"", list[tuple[int, bytes]]()
    for key, value in bench.reader.scan("dirent"):
        if key[:-8] != thing:
            if versions:
                yield keys.unpack_id(thing), thing[8:-1], versions
            thing, versions = key[:-8], []
        known = not damaged_dirent_key(key) and len(value) in (0, 9)
        if known and keys.epoch_of(key) in bench.scan.history.epochs:
            versions.append((keys.epoch_of(key), value))
    if versions:
        yield keys.unpack_id(thing), thing[8:-1], versions


# -- link counts ------------------------------------------------------------------------------


def _counts(bench: Bench) -> None:
    """Link counts are those of the names (files) or the sub-directories (directories)."""
    done = 0
    for key, _ in bench.reader.scan("inode"):
        ino = keys.unpack_id(key)
        if ino != done:
            done = ino
            _count(bench, ino)


def _count(bench: Bench, ino: int) -> None:
    origin = bench.scan.origin(ino)
    if origin is not None and origin.state != records.ORIGIN_DONE:
        first = bench.scan.versions("inode", keys.pack_id(ino))
        if any(len(value) > 4 and _is_directory(value) for _, value in first):
            return  # its entries are only in the base
    touched = {keys.epoch_of(key) for key, _ in bench.reader.scan("inode", keys.pack_id(ino))}
    touched |= {keys.epoch_of(key) for key, _ in bench.reader.scan("link", keys.pack_id(ino))}
    touched |= {keys.epoch_of(key) for key, _ in bench.reader.scan("dirent", keys.pack_id(ino))}
    states = {at: line for epoch in touched for at, line in bench.scan.history.showing(epoch)}
    for epoch in sorted(states):
        lineage = states[epoch]
        record = _inode(bench, ino, lineage)
        if record is None:
            continue
        nlink = _right_count(Snapshot(bench.reader, lineage), ino, record)
        if nlink != record.nlink:
            key = keys.inode_key(ino, epoch)
            bench.put("inode", key, records.pack_inode(*record._replace(nlink=nlink)))
            if epoch:
                bench.put("change", keys.change_inode_key(epoch, ino), b"")
            paths = bench.scan.paths(ino, [("", lineage)])
            detail = f"nlink is {nlink}, not {record.nlink}"
            bench.did(REBUILT, "inode", f"{ino}", detail, paths)


def _is_directory(value: bytes) -> bool:
    return stat.S_ISDIR(int.from_bytes(value[1:5], "big"))


def _right_count(snapshot: Snapshot, ino: int, record: records.InodeRecord) -> int:
    if stat.S_ISDIR(record.mode):
        return 2 + sum(kind == _DIRECTORY for _, _, kind in snapshot.entries(ino))
    names = len(snapshot.links(ino))
    if record.flags & records.INODE_EXTERNAL_LINKS:
        return max(names, record.nlink)
    return names or record.nlink


# -- change records ---------------------------------------------------------------------------


def _stray_changes(bench: Bench) -> None:
    for key, value in bench.reader.scan("change"):
        epoch, fault = keys.unpack_id(key), "it makes no sense"
        if len(key) >= 17 and not value:
            kind, ino, name = keys.change_parts(key)
            if epoch and epoch in bench.scan.history.epochs:
                if kind == keys.KIND_INODE and len(key) == 17:
                    wanted = ("inode", keys.inode_key(ino, epoch))
                else:
                    wanted = ("dirent", keys.dirent_key(ino, name, epoch))
                if kind in (keys.KIND_INODE, keys.KIND_DIRENT) and bench.get(*wanted) is not None:
                    continue
                fault = f"epoch {epoch} has no such version"
        bench.delete("change", key)
        bench.did(REBUILT, "change", key.hex(), f"dropped: {fault}")


def _missing_changes(bench: Bench) -> None:
    epochs = bench.scan.history.epochs
    for table in ("inode", "dirent"):
        for key, _ in bench.reader.scan(table):
            if len(key) < 16 or not (epoch := keys.epoch_of(key)) or epoch not in epochs:
                continue
            if table == "inode":
                change = keys.change_inode_key(epoch, keys.unpack_id(key))
            else:
                change = keys.change_dirent_key(epoch, keys.unpack_id(key), keys.dirent_name(key))
            if bench.get("change", change) is None:
                bench.put("change", change, b"")
                bench.did(REBUILT, "change", change.hex(), f"epoch {epoch} has this {table}")
    for table in ("xattr", "extent"):
        for key, _ in bench.reader.scan(table):
            if len(key) >= 17 and (epoch := keys.epoch_of(key)) and epoch in epochs:
                thing = keys.unpack_id(key)
                if table == "xattr":
                    _touched(bench, thing, epoch)
                else:
                    _touched(bench, bench.scan.owners.get(thing, thing), epoch, thing)


def _touched(bench: Bench, ino: int, epoch: int, content: int | None = None) -> None:
    """An epoch that wrote something of an inode (of this content of it) has a version of it."""
    key = keys.inode_key(ino, epoch)
    lineage = bench.scan.history.judged(epoch)
    if bench.get("inode", key) is not None or lineage is None or lineage.head != epoch:
        return
    record = _inode(bench, ino, lineage)
    if record is not None and content in (None, record.content):
        bench.put("inode", key, records.pack_inode(*record))
        bench.put("change", keys.change_inode_key(epoch, ino), b"")
        bench.did(REBUILT, "change", f"{ino}", f"epoch {epoch} changed this inode")
