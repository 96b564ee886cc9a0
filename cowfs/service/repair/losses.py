"""What becomes of records that went with a damaged page: told anew from other records or from the
base, or put in place as lost, so that they are errors and not something else.

A record that is missing means something: that a name or an attribute does not exist, that a block
reads as zeros. So a gap in a table must not stay empty where a record may have been. Which records
there were is told by change records (each version of an inode and a name has one), by the other
half of a name, and by the size of a file.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.service.repair.bench import MARKED, REBUILT, RESTORED, Bench
from cowfs.service.repair.directories import LOST_INODE
from cowfs.service.repair.names import links_from_entries
from cowfs.service.repair.things import base_entry, mark_extent, places_in_base, shown_as
from cowfs.service.verify.report import text
from cowfs.store.salvage import Gap
from cowfs.store.snapshot import Snapshot
from cowfs.types import BLOCK_SIZE, ROOT_INO
from cowfs.volume.base import BaseEntry
from cowfs.volume.importing import base_record, inode_record

_REGULAR = 8
_MOST_BLOCKS = 1 << 16
"""Blocks of one version of a file that are looked at one by one."""


def fill_gaps(bench: Bench, gaps: Sequence[Gap]) -> None:
    """Put something in place of what was lost, table by table; what one has the next can use."""
    for table, fill in (
        ("dirent", _names),
        ("link", _links),
        ("inode", _inodes),
        ("extent", _extents),
        ("xattr", _attributes),
        ("origin", _origins),
        ("base", _base),
    ):
        missing = _Missing(bench, table, gaps)
        if missing:
            fill(bench, missing)
            bench.apply()


def tell_undone(bench: Bench, found: set[tuple[str, bytes]]) -> None:
    """Say what the last commit had and is not there; found: (table, key)."""
    inodes = {keys.unpack_id(key) for table, key in found if table == "inode"}
    names = {key[:-8] for table, key in found if table == "dirent"}
    states = bench.scan.history.states[-1:]
    paths = [path for ino in sorted(inodes) for path in bench.scan.paths(ino, states)]
    for prefix in sorted(names):
        paths += bench.scan.path_in(keys.unpack_id(prefix), prefix[8:-1], states)
    detail = f"the last commit is not there: {len(found)} records"
    bench.did(MARKED, "", "the file", detail, dict.fromkeys(paths))


class _Missing:
    """The gaps of one table. both_halves: some names may have been lost with their links."""

    def __init__(self, bench: Bench, table: str, gaps: Sequence[Gap]) -> None:
        self._bench = bench
        self._table = table
        self.gaps = [gap for gap in gaps if gap.table == table]
        self.both_halves = {"dirent", "link"} <= {gap.table for gap in gaps}

    def __bool__(self) -> bool:
        return bool(self.gaps)

    def __contains__(self, key: bytes) -> bool:
        """Whether a record with this key may have been lost."""
        return any(g.has(key) for g in self.gaps) and self._bench.get(self._table, key) is None


def _changed(bench: Bench, kind: int) -> Iterator[tuple[int, int, bytes]]:
    """(epoch, inode or directory, name) of the change records of a kind."""
    for key, _ in bench.reader.scan("change"):
        if len(key) >= 17 and key[8] == kind:
            _, thing, name = keys.change_parts(key)
            yield keys.unpack_id(key), thing, name


# -- names ------------------------------------------------------------------------------------


def _names(bench: Bench, missing: _Missing) -> None:
    """Entries of directories: live ones are told by links, removals by change records."""
    for key, value in bench.reader.scan("link"):
        if len(key) < 26 or len(value) != 1:
            continue
        parent, name = keys.link_parts(key)
        entry = keys.dirent_key(parent, name, keys.epoch_of(key))
        if entry in missing:
            bench.put("dirent", entry, records.pack_dirent(keys.unpack_id(key), value[0]))
            detail = f"it is a name of inode {keys.unpack_id(key)}"
            bench.did(RESTORED, "dirent", f"{parent}/{text(name)}", detail, [name])
    for epoch, parent, name in _changed(bench, keys.KIND_DIRENT):
        entry, thing = keys.dirent_key(parent, name, epoch), f"{parent}/{text(name)}"
        if entry not in missing:
            continue
        if missing.both_halves:
            _lost_name(bench, epoch, parent, name)
            bench.did(MARKED, "dirent", thing, "nothing says what it was a name of", [name])
        else:
            bench.put("dirent", entry, records.WHITEOUT)
            bench.did(RESTORED, "dirent", thing, f"epoch {epoch} removed it", [name])


def _lost_name(bench: Bench, epoch: int, parent: int, name: bytes) -> None:
    """A name of an inode that is lost, with a number that nothing else has."""
    bench.scan.largest += 1
    ino = bench.scan.largest
    bench.put("dirent", keys.dirent_key(parent, name, epoch), records.pack_dirent(ino, _REGULAR))
    bench.put("link", keys.link_key(ino, parent, name, epoch), bytes((_REGULAR,)))
    bench.put("inode", keys.inode_key(ino, epoch), LOST_INODE)
    bench.put("change", keys.change_inode_key(epoch, ino), b"")


def _links(bench: Bench, missing: _Missing) -> None:
    """Links follow from entries."""
    links_from_entries(bench)


# -- inodes -----------------------------------------------------------------------------------


def _inodes(bench: Bench, missing: _Missing) -> None:
    """Versions that change records and names tell of: with a name it is lost, without it was the
    removal."""
    for epoch, ino, _ in _changed(bench, keys.KIND_INODE):
        key = keys.inode_key(ino, epoch)
        lineage = bench.scan.history.judged(epoch)
        if lineage is None or key not in missing:
            continue
        if ino == ROOT_INO or Snapshot(bench.reader, lineage).links(ino):
            bench.put("inode", key, LOST_INODE)
        else:
            bench.put("inode", key, records.WHITEOUT)
            bench.did(RESTORED, "inode", f"{ino}", f"epoch {epoch} removed it")
    for key, value in bench.reader.scan("link"):
        if len(key) < 26 or not value:
            continue
        ino, epoch = keys.unpack_id(key), keys.epoch_of(key)
        lineage = bench.scan.history.judged(epoch)
        wanted = keys.inode_key(ino, epoch)
        if lineage is None or wanted not in missing:
            continue
        if Snapshot(bench.reader, lineage).newest("inode", keys.pack_id(ino)) is None:
            bench.put("inode", wanted, LOST_INODE)
    if (root := keys.inode_key(ROOT_INO, 0)) in missing:
        bench.put("inode", root, LOST_INODE)


# -- content ----------------------------------------------------------------------------------


def _extents(bench: Bench, missing: _Missing) -> None:
    """Blocks that an epoch may have written: an error from now on, instead of zeros or older bytes.

    Which blocks of a file an epoch wrote is not told, so some may be marked that it did not write.
    Epoch 0 needs nothing: without an extent its blocks come from the base, if that is unchanged.
    """
    for key, value in bench.reader.scan("inode"):
        if len(key) != 16 or not (epoch := keys.epoch_of(key)):
            continue
        try:
            record = records.unpack_inode(value)
        except DamagedRecordError:
            continue
        if not stat.S_ISREG(record.mode) or not record.size:
            continue
        blocks = (record.size + BLOCK_SIZE - 1) // BLOCK_SIZE
        first, last = _overlap(missing.gaps, record.content, blocks)
        if last - first > _MOST_BLOCKS:
            ino = keys.unpack_id(key)
            bench.put("inode", key, LOST_INODE)
            detail = f"epoch {epoch}: which of its {blocks} blocks are lost is not known"
            bench.did(MARKED, "inode", f"{ino}", detail, shown_as(bench, ino, epoch))
            continue
        for number in range(first, last):
            extent = keys.extent_key(record.content, number, epoch)
            if extent in missing:
                detail = f"what epoch {epoch} wrote there is lost; reading it stays an error"
                mark_extent(bench, extent, b"", detail)


def _overlap(gaps: Sequence[Gap], content: int, blocks: int) -> tuple[int, int]:
    """The first block of a content that a gap touches, and the one after the last."""
    first, last = blocks, 0
    prefix = keys.pack_id(content)
    for gap in gaps:
        if gap.low[:8] > prefix or (gap.high is not None and gap.high[:8] < prefix):
            continue
        begins, ends = gap.low[:8] == prefix, gap.high is not None and gap.high[:8] == prefix
        first = min(first, keys.extent_block(gap.low) if begins and len(gap.low) >= 16 else 0)
        stop = blocks
        if ends and gap.high is not None:
            stop = keys.extent_block(gap.high) + 1 if len(gap.high) >= 16 else 0
        last = max(last, min(stop, blocks))
    return min(first, last), last


# -- attributes and the base ------------------------------------------------------------------


def _attributes(bench: Bench, missing: _Missing) -> None:
    """Attributes from the base are read again; of others nothing tells that they were there."""
    for ino, place in places_in_base(bench).items():
        if not any(_may_have(gap, ino) for gap in missing.gaps):
            continue
        entry = base_entry(bench, place)
        for name, value in entry.xattrs.items() if entry is not None else ():
            key = keys.xattr_key(ino, name, 0)
            if key in missing:
                bench.put("xattr", key, b"\1" + value)
                detail = "from the base"
                bench.did(RESTORED, "xattr", f"{ino} {text(name)}", detail, [place[1]])
    inodes = {keys.unpack_id(key) for key, _ in bench.reader.scan("inode") if len(key) == 16}
    for gap in missing.gaps:
        hit = sorted(ino for ino in inodes if _may_have(gap, ino))
        paths = [path for ino in hit for path in bench.scan.paths(ino, bench.scan.history.states)]
        if hit:
            detail = f"attributes of {len(hit)} inodes may be lost"
            bench.did(MARKED, "xattr", f"{hit[0]} to {hit[-1]}", detail, paths)


def _may_have(gap: Gap, ino: int) -> bool:
    """Whether keys of an inode may be in a gap."""
    prefix = keys.pack_id(ino)
    return gap.low[:8] <= prefix and (gap.high is None or prefix < gap.high)


def _base(bench: Bench, missing: _Missing) -> None:
    """What is remembered of the base is made anew where the base still has what was imported; else
    what was only there is lost."""
    for key, value in bench.reader.scan("dirent"):
        if len(key) < 18 or len(value) != 9 or keys.epoch_of(key):
            continue
        parent, name, ino = keys.unpack_id(key), keys.dirent_name(key), keys.unpack_id(value)
        place = keys.base_key(parent, name)
        stored = bench.reader.get("inode", keys.inode_key(ino, 0))
        if place not in missing or bench.scan.origin(parent) is None or not stored:
            continue
        try:
            inode = records.unpack_inode(stored)
        except DamagedRecordError:
            continue
        entry = base_entry(bench, (parent, name, None))
        alone = (records.ORIGIN_UNLISTED, parent, name)
        regular = stat.S_ISREG(inode.mode)
        if entry is not None and _was_imported(entry, inode):
            record = base_record(entry, ino, inode.content if regular else 0)
            bench.put("base", place, records.pack_base(record))
            bench.did(RESTORED, "base", f"{parent}/{text(name)}", "from the base", [name])
        elif regular and bench.scan.origin(inode.content) == alone:
            lost = records.pack_origin(records.ORIGIN_LOST, parent, name)
            bench.put("origin", keys.pack_id(inode.content), lost)
            detail = "the base has another file now; what was not sealed is lost"
            paths = bench.scan.paths(ino, bench.scan.history.states)
            bench.did(MARKED, "origin", f"{inode.content}", detail, paths)


def _was_imported(entry: BaseEntry, inode: records.InodeRecord) -> bool:
    """Whether the base has what an inode of epoch 0 was made of."""
    fresh = inode_record(entry, 0)
    same = (fresh.mode, fresh.mtime, fresh.ctime) == (inode.mode, inode.mtime, inode.ctime)
    return same and (not stat.S_ISREG(inode.mode) or fresh.size == inode.size)


def _origins(bench: Bench, missing: _Missing) -> None:
    """Where the root lies; of others the table `base` tells."""
    if keys.pack_id(ROOT_INO) in missing and bench.scan.has_prefix("base", keys.pack_id(ROOT_INO)):
        origin = records.pack_origin(records.ORIGIN_DONE, 0, b"")
        bench.put("origin", keys.pack_id(ROOT_INO), origin)
        bench.did(REBUILT, "origin", "1", "it is the root")
