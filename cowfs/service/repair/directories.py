"""Inodes of directories, and names of inodes that are gone.

What is below a directory is in its entries, not in its inode: a damaged inode must not take a whole
tree along. So it is made anew, with the attributes of another version of it or of the directory
above. A file's or a link's inode says what nothing else does; it stays lost.

Threading: owned by the thread that repairs.
"""

from __future__ import annotations

import os
import stat

from cowfs.errors import DamagedRecordError
from cowfs.format import keys, records
from cowfs.service.repair.bench import MARKED, REBUILT, Bench
from cowfs.service.verify import LOST
from cowfs.service.verify.report import text
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot
from cowfs.types import ROOT_INO

LOST_INODE = b"\0"
"""No inode: what is put where one was."""
_DIRECTORY = 4


def mend_directories(bench: Bench) -> bool:
    """Make damaged inodes of directories anew; whether there were any."""
    if "record" not in bench.checks:
        return False
    for key, value in bench.reader.scan("inode"):
        if len(key) != 16 or not 0 < len(value) < records.INODE_FIXED:
            continue
        ino, epoch = keys.unpack_id(key), keys.epoch_of(key)
        lineage = bench.scan.history.judged(epoch)
        if lineage is None:
            continue
        above = _above(bench, ino, lineage)
        found = _like(bench, ino, epoch) if above else None
        if above and found is None:
            found = _like(bench, above, epoch)
        if found is None:
            continue
        moment = bench.scan.history.epochs[epoch].opened
        record = found._replace(
            flags=0, nlink=2, size=0, atime=moment, mtime=moment, ctime=moment, content=ino
        )
        bench.put("inode", key, records.pack_inode(*record))
        bench.delete("meta", LOST + b"inode\0" + key)
        detail = "a directory again, with the owner and mode of another version or of the one above"
        paths = bench.scan.paths(ino, [("", lineage)])
        bench.did(REBUILT, "inode", f"{ino}", detail, paths)
    return bench.apply()


def _above(bench: Bench, ino: int, lineage: Lineage) -> int:
    """The directory that a directory lies in, the root for itself, 0 when it is none."""
    if ino == ROOT_INO:
        return ROOT_INO
    snapshot = Snapshot(bench.reader, lineage)
    for parent, name in snapshot.links(ino):
        found = snapshot.newest("link", keys.link_prefix(ino, parent, name))
        if found is not None and found[1] == bytes((_DIRECTORY,)):
            return parent
    return 0


def _like(bench: Bench, ino: int, epoch: int) -> records.InodeRecord | None:
    """The version of a directory that is nearest to an epoch, an older one rather than a newer."""
    versions = []
    for other, value in bench.scan.versions("inode", keys.pack_id(ino)):
        try:
            record = records.unpack_inode(value)
        except DamagedRecordError:
            continue
        if stat.S_ISDIR(record.mode):
            versions.append((other > epoch, abs(other - epoch), record))
    if versions:
        return min(versions)[2]
    if ino != ROOT_INO:
        return None
    # Without a root nothing can be reached at all.
    base = bench.scan.base
    place = base.root().st if base is not None else os.stat(bench.reader.store.path)
    mode, uid, gid = place.st_mode, place.st_uid, place.st_gid
    return records.InodeRecord(0, mode, 2, uid, gid, 0, 0, 0, 0, 0, ROOT_INO, 0, b"")


def mark_absent(bench: Bench) -> bool:
    """Names that lead to an inode of which there is no version at all: it is lost, as a damaged one
    is. Whether there were any."""
    if "dirent-inode" not in bench.checks:
        return False
    for key, value in bench.reader.scan("dirent"):
        if len(key) < 18 or len(value) != 9:
            continue
        ino, epoch = keys.unpack_id(value), keys.epoch_of(key)
        inode = keys.inode_key(ino, epoch)
        lineage = bench.scan.history.judged(epoch)
        known = bench.get("inode", inode) is not None or lineage is None
        if ino in bench.scan.owners:
            continue  # the number of another inode's content: that it never was
        if known or bench.scan.has_prefix("inode", keys.pack_id(ino)):
            continue
        name = keys.dirent_name(key)
        link = keys.link_key(ino, keys.unpack_id(key), name, epoch)
        if bench.get("link", link) is None:
            continue  # its other half, first
        bench.put("inode", inode, LOST_INODE)
        bench.put("meta", LOST + b"inode\0" + inode, b"")
        if epoch:
            bench.put("change", keys.change_inode_key(epoch, ino), b"")
        paths = bench.scan.path_in(keys.unpack_id(key), name, [("", lineage)] if lineage else [])
        thing = f"{keys.unpack_id(key)}/{text(name)}"
        bench.did(MARKED, "dirent", thing, f"inode {ino} is lost; using it stays an error", paths)
    return bench.apply()
