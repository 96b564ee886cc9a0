"""Inodes, extended attributes and extents, and what is remembered of the base directory.

What came from the base is read from it again, while its fingerprint is the recorded one.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

import stat

from cowfs.errors import DamagedRecordError
from cowfs.format import codec, keys, records
from cowfs.format.checksum import DAMAGED
from cowfs.service.repair.bench import MARKED, REBUILT, RESTORED, Bench
from cowfs.service.verify import LOST
from cowfs.service.verify.report import text
from cowfs.service.verify.values import inode_faults
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot
from cowfs.volume.base import BaseEntry, same_file
from cowfs.volume.importing import base_record, inode_record, recorded_fingerprint

_DIRECTORY, _REGULAR, _SYMLINK = 4, 8, 10
_WITHOUT_HASH = (records.EXTENT_BASE, records.EXTENT_THINNED)
Places = dict[int, tuple[int, bytes, records.BaseRecord]]


def mend_things(bench: Bench) -> bool:
    """Repair single records; whether anything was done."""
    places: Places | None = None
    if bench.checks & {"record", "base-entry"}:
        _bases(bench)
    if bench.checks & {"record", "origin"}:
        places = places_in_base(bench)
        _origins(bench, places)
        _useless(bench)
    if bench.checks & {"record", "inode-fields", "symlink-target"}:
        _inodes(bench, places if places is not None else places_in_base(bench))
    if "record" in bench.checks:
        _attributes(bench)
    if bench.checks & {"hardlink", "orphan"}:
        _useless(bench)
    return bench.apply()


def mark_things(bench: Bench) -> bool:
    """Mark records that nothing tells of any more; whether there were any."""
    if "record" not in bench.checks:
        return False
    for key, value in bench.reader.scan("inode"):
        mark = LOST + b"inode\0" + key
        short = len(key) == 16 and 0 < len(value) < records.INODE_FIXED
        if short and bench.get("meta", mark) is None:
            ino, epoch = keys.unpack_id(key), keys.epoch_of(key)
            bench.put("meta", mark, b"")
            detail = f"what epoch {epoch} made of it is lost; using it stays an error"
            bench.did(MARKED, "inode", f"{ino}", detail, shown_as(bench, ino, epoch))
    for key, value in bench.reader.scan("extent"):
        known = len(value) in (0, codec.HASH_SIZE) or value in _WITHOUT_HASH
        if len(key) == 24 and not known:
            mark_extent(bench, key, value, "nothing says which block it was")
    return bench.apply()


def mark_extent(bench: Bench, key: bytes, value: bytes, detail: str) -> None:
    """Give an extent a name that no block has: reading it is an error, writing over it is not."""
    digest = codec.block_hash(key + value)
    bench.put("extent", key, digest)
    bench.put("meta", LOST + b"block\0" + digest, value)
    owner = bench.scan.owners.get(keys.unpack_id(key), keys.unpack_id(key))
    paths = bench.scan.paths(owner, bench.scan.history.states)
    thing = f"content {keys.unpack_id(key)} block {keys.extent_block(key)}"
    bench.did(MARKED, "extent", thing, detail, paths)


def shown_as(bench: Bench, ino: int, epoch: int) -> list[bytes]:
    """Paths of an inode in the states that see an epoch."""
    known = epoch in bench.scan.history.epochs
    return bench.scan.paths(ino, bench.scan.history.seeing(epoch, ()) if known else [])


# -- the base ---------------------------------------------------------------------------------


def places_in_base(bench: Bench) -> Places:
    """Where directories (by ino) and contents lie in the base, from the table `base`."""
    found: Places = {}
    for key, value in bench.reader.scan("base"):
        try:
            record = records.unpack_base(value)
        except DamagedRecordError:
            continue
        thing = record.ino if record.kind in (_DIRECTORY, _SYMLINK) else record.content
        if thing and len(key) > 8:
            found.setdefault(thing, (keys.unpack_id(key), key[8:], record))
    return found


def _origins(bench: Bench, places: Places) -> None:
    """Origins that are gone or make no sense: the table `base` knows the place."""
    for thing, (parent, name, record) in places.items():
        if record.kind == _SYMLINK:
            continue
        origin = bench.scan.origin(thing)
        known = origin is not None and origin.state <= records.ORIGIN_LOST
        listed = record.kind == _DIRECTORY and (
            bench.scan.has_prefix("base", keys.pack_id(thing))
            or bench.scan.has_prefix("dirent", keys.pack_id(thing))
        )
        if origin is not None and known and _lies_there(bench, thing, origin):
            sound = not listed or origin.state != records.ORIGIN_UNLISTED
            if sound:
                continue
        state = records.ORIGIN_UNLISTED
        if origin is not None and known and not listed:
            state = origin.state
        elif record.kind == _DIRECTORY:
            state = records.ORIGIN_DONE if listed else records.ORIGIN_UNLISTED
        elif not bench.scan.has_prefix("inode", keys.pack_id(thing)) or (
            origin is None and not _rests_on_base(bench, thing)
        ):
            continue
        bench.put("origin", keys.pack_id(thing), records.pack_origin(state, parent, name))
        bench.did(REBUILT, "origin", f"{thing}", f"it lies in directory {parent}", [name])
    root = bench.scan.origin(1)
    if root is not None and (
        root.state > records.ORIGIN_LOST or (root.parent, root.name) != (0, b"")
    ):
        bench.put("origin", keys.pack_id(1), records.pack_origin(records.ORIGIN_DONE, 0, b""))
        bench.did(REBUILT, "origin", "1", "it is the root")


def _lies_there(bench: Bench, thing: int, origin: records.OriginRecord) -> bool:
    """Whether the table `base` agrees with an origin."""
    value = bench.get("base", keys.base_key(origin.parent, origin.name))
    try:
        record = records.unpack_base(value or b"")
    except DamagedRecordError:
        return False
    return thing in (record.ino, record.content)


def _bases(bench: Bench) -> None:
    """Entries of the base that make no sense, from the base, when it has what was imported."""
    for key, value in bench.reader.scan("base"):
        parent, name = keys.unpack_id(key), key[8:]
        start = Snapshot(bench.reader, Lineage(((0, 0),)))
        try:
            kind = records.unpack_base(value).kind
        except DamagedRecordError:
            kind = 0
        try:
            found = start.lookup(parent, name)
        except DamagedRecordError:
            continue
        if found is None or found[1] == kind:
            continue
        entry, inode = _lookup(bench, parent, name), start.inode(found[0])
        if entry is None or inode is None:
            continue
        shown = inode.mode, inode.mtime, inode.ctime, inode.size if found[1] == _REGULAR else 0
        fresh = inode_record(entry, 0)
        if shown == (fresh.mode, fresh.mtime, fresh.ctime, shown[3] and fresh.size):
            content = found[0] if found[1] == _REGULAR else 0
            record = base_record(entry, found[0], content)
            bench.put("base", key, records.pack_base(record))
            bench.did(RESTORED, "base", f"{parent}/{text(name)}", "from the base", [name])


def _rests_on_base(bench: Bench, content: int) -> bool:
    """Whether any version of a content's inode may read from the base."""
    owner = bench.scan.owners.get(content, content)
    for _, value in bench.scan.versions("inode", keys.pack_id(owner)):
        if len(value) >= records.INODE_FIXED:
            record = records.unpack_inode(value)
            if record.content == content and record.base_size:
                return True
    return False


def _useless(bench: Bench) -> None:
    """Records that only save work, and make no sense."""
    for key, value in bench.reader.scan("hardlink"):
        found = bench.scan.versions("inode", value) if len(value) == 8 else []
        kinds = {records.kind_of(int.from_bytes(v[1:5], "big")) for _, v in found if v}
        if len(key) != 16 or len(value) != 8 or _DIRECTORY in kinds:
            bench.delete("hardlink", key)
            bench.did(REBUILT, "hardlink", key.hex(), "dropped: further names become files")
    for key, value in bench.reader.scan("orphan"):
        content, epoch = keys.unpack_id(value), keys.unpack_id(value[8:])
        owner = bench.scan.owners.get(content, content)
        stolen = owner != keys.unpack_id(key) and bench.scan.has_prefix(
            "inode", keys.pack_id(owner)
        )
        if len(key) != 8 or len(value) != 16 or stolen or epoch not in bench.scan.history.epochs:
            bench.delete("orphan", key)
            bench.did(REBUILT, "orphan", key.hex(), "dropped: its blocks only take space")


# -- inodes -----------------------------------------------------------------------------------


def _inodes(bench: Bench, places: Places) -> None:
    for key, value in bench.reader.scan("inode"):
        if len(key) != 16 or not value:
            continue
        ino, epoch = keys.unpack_id(key), keys.epoch_of(key)
        short = len(value) < records.INODE_FIXED
        if epoch == 0 and (short or any(inode_faults(records.unpack_inode(value)))):
            entry = base_entry(bench, places.get(ino))
            if entry is not None:
                bench.put("inode", key, records.pack_inode(*inode_record(entry, ino)))
                bench.did(RESTORED, "inode", f"{ino}", "from the base", [entry.name])
                continue
        if short:
            continue
        record = records.unpack_inode(value)
        regular = stat.S_ISREG(record.mode)
        device = stat.S_ISCHR(record.mode) or stat.S_ISBLK(record.mode)
        sane = record._replace(
            flags=record.flags & records.INODE_EXTERNAL_LINKS,
            rdev=record.rdev if device else 0,
            base_size=min(record.base_size, record.size) if regular else 0,
        )
        if sane != record:
            bench.put("inode", key, records.pack_inode(*sane))
            detail = "flags, device number and base size as they may be"
            bench.did(REBUILT, "inode", f"{ino}", detail, shown_as(bench, ino, epoch))


def base_entry(
    bench: Bench, place: tuple[int, bytes, records.BaseRecord | None] | None
) -> BaseEntry | None:
    """What lies at a place of the base, when it is what was recorded, if anything was."""
    if place is None:
        return None
    parent, name, record = place
    entry = _lookup(bench, parent, name)
    if entry is None or record is None or same_file(entry.st, recorded_fingerprint(record)):
        return entry
    return None


def _lookup(bench: Bench, parent: int, name: bytes) -> BaseEntry | None:
    """What lies at a place of the base now."""
    if bench.scan.base is None:
        return None
    parts, above = [name], parent
    while above != 1:
        origin = bench.scan.origin(above)
        if origin is None or len(parts) > 4096:
            return None
        parts.append(origin.name)
        above = origin.parent
    try:
        return bench.scan.base.lookup(b"/".join(reversed(parts)))
    except OSError:
        return None


def _attributes(bench: Bench) -> None:
    """The first byte of an attribute's value is always 1."""
    for key, value in bench.reader.scan("xattr"):
        if len(key) >= 17 and value and value[0] != 1 and value != DAMAGED:
            bench.put("xattr", key, b"\1" + value[1:])
            thing = f"{keys.unpack_id(key)} {text(keys.xattr_name(key))}"
            bench.did(REBUILT, "xattr", thing, "its first byte is 1")
