"""Checks of the tree: inodes, directory entries, links, extended attributes, change records.

One pass in the order of inode numbers over four tables side by side. A state is not walked:
what a state shows of a thing is decided by the newest epoch that touched it, so it is enough to
look at each thing at each epoch that touched it, through that epoch's lineage. The state of epoch
0 and what each epoch changed being sound, every state is. Where an epoch is no state any more,
since its checkpoint was removed, the states that were made from it take its place.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator

from cowfs.errors import DamagedRecordError
from cowfs.format import codec, keys, records
from cowfs.service.verify.nodes import Node, Stream, Versions
from cowfs.service.verify.relations import Relations
from cowfs.service.verify.report import NOTE, text
from cowfs.service.verify.scan import Scan, newest
from cowfs.service.verify.values import (
    damaged_dirent_key,
    damaged_inode_key,
    damaged_link_key,
    damaged_xattr,
    inode_faults,
)
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot
from cowfs.types import BLOCK_SIZE

_DIRECTORY = 4


def check_tree(scan: Scan) -> None:
    """All checks of things that belong to an inode number."""
    _Tree(scan).run()


class _Tree:
    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self._relations = Relations(scan)

    def run(self) -> None:
        scan = self.scan
        inodes, entries = Stream(scan, "inode"), Stream(scan, "dirent")
        links, xattrs = Stream(scan, "link"), Stream(scan, "xattr")
        streams = (inodes, entries, links, xattrs)
        while True:
            waiting = [stream.ino for stream in streams if stream.ino is not None]
            if not waiting:
                break
            ino = min(waiting)
            scan.use(ino)
            node = Node(ino)
            self._inodes(node, inodes.take(ino))
            self._links(node, links.take(ino))
            self._entries(node, entries.take(ino))
            self._xattrs(node, xattrs.take(ino))
            self._relations.check(node)
        if not scan.has("inode", keys.inode_key(1, 0)):
            scan.problem("inode-links", "inode", "1", "there is no root directory in epoch 0")

    # -- reading ------------------------------------------------------------------------------

    def _damaged(
        self,
        table: str,
        thing: str,
        detail: str,
        ino: int,
        epoch: int | None,
        *,
        lost: bool = False,
    ) -> None:
        """A record that does not decode; `lost`: it is marked as that."""
        scan = self.scan
        scan.suspects.add(ino)
        states = scan.history.seeing(epoch, ()) if epoch is not None else ()
        if lost:
            scan.problem(
                "record-lost", table, thing, detail, states=states, inode=ino, severity=NOTE
            )
        else:
            scan.problem("record", table, thing, detail, states=states, inode=ino)

    def _known(self, table: str, thing: str, epoch: int, ino: int) -> bool:
        """Whether a version's epoch exists; it counts for nothing otherwise."""
        if epoch in self.scan.history.epochs:
            return True
        self.scan.suspects.add(ino)
        detail = f"it belongs to epoch {epoch}, which does not exist"
        self.scan.problem("record-epoch", table, thing, detail)
        return False

    def _inodes(self, node: Node, found: Iterator[tuple[bytes, bytes]]) -> None:
        ino, kinds = node.ino, set()
        sizes: dict[int, records.InodeRecord] = {}
        for key, value in found:
            if fault := damaged_inode_key(key):
                self._damaged("inode", key.hex(), fault, ino, None)
                continue
            epoch = keys.epoch_of(key)
            if not self._known("inode", f"{ino}", epoch, ino):
                continue
            if value:
                try:
                    record = records.unpack_inode(value)
                except DamagedRecordError as error:
                    lost = b"inode\0" + key in self.scan.lost
                    self._damaged("inode", f"{ino}", error.details["detail"], ino, epoch, lost=lost)
                    continue
                kinds.add(records.kind_of(record.mode))
                self._fields(ino, epoch, record)
                if stat.S_ISREG(record.mode):
                    sizes[epoch] = record
            node.versions.append((epoch, value))
            if epoch and not self.scan.has("change", keys.change_inode_key(epoch, ino)):
                self._unchanged("inode", f"{ino}", epoch, ino)
        for at, (epoch, _) in enumerate(node.versions):
            if (of := sizes.get(epoch)) is not None:
                for lineage in self._showing(node.versions, at):
                    self._extents_fit(ino, epoch, of, lineage)
        if len(kinds) > 1:
            self.scan.problem(
                "inode-type", "inode", f"{ino}", f"its versions have the types {sorted(kinds)}"
            )

    def _fields(self, ino: int, epoch: int, record: records.InodeRecord) -> None:
        scan, thing = self.scan, f"{ino}"
        for check, detail in inode_faults(record):
            scan.problem(check, "inode", thing, detail, states=self._seeing(ino, epoch), inode=ino)
        scan.use(record.content)
        if record.content != ino and record.content:
            owner = scan.owners.setdefault(record.content, ino)
            if owner == ino and scan.has_prefix("inode", keys.pack_id(record.content)):
                owner = record.content
            if owner != ino:
                scan.problem(
                    "content-owner",
                    "inode",
                    thing,
                    f"its content {record.content} belongs to inode {owner}",
                    states=self._seeing(ino, epoch),
                    inode=ino,
                )
        if record.base_size and not scan.has("origin", keys.pack_id(record.content)):
            detail = f"nothing says where its content {record.content} lies in the base"
            scan.problem(
                "origin", "inode", thing, detail, states=self._seeing(ino, epoch), inode=ino
            )

    def _seeing(self, ino: int, epoch: int) -> list[tuple[str, Lineage]]:
        """The states that show one version of an inode."""
        versions = self.scan.versions("inode", keys.pack_id(ino))
        return self.scan.history.seeing(epoch, [e for e, _ in versions])

    def _extents_fit(
        self, ino: int, epoch: int, record: records.InodeRecord, lineage: Lineage
    ) -> None:
        """No extent reaches beyond the end of the file; those of epoch 0 are cut by base_size."""
        if "extent" in self.scan.unreadable or "block" in self.scan.unreadable:
            return
        prefix, number = keys.pack_id(record.content), -1
        cursor = self.scan.cursor("extent")
        found = cursor.set_range(keys.extent_prefix(record.content, record.size // BLOCK_SIZE))
        while found:
            key = cursor.key()
            if not key.startswith(prefix):
                return
            written = keys.epoch_of(key)
            if len(key) == 24 and keys.extent_block(key) != number and lineage.visible(written):
                number = keys.extent_block(key)
                digest = cursor.value()
                if written and len(digest) == codec.HASH_SIZE:
                    self._extent_fits(ino, epoch, record, number, digest)
            found = cursor.next()

    def _extent_fits(
        self, ino: int, epoch: int, record: records.InodeRecord, number: int, digest: bytes
    ) -> None:
        block = self.scan.reader.get("block", digest)
        if block is None or len(block) < codec.HEADER_SIZE:
            return
        end = number * BLOCK_SIZE + int.from_bytes(block[1:5], "big")
        if end > record.size:
            self.scan.problem(
                "extent-size",
                "extent",
                f"content {record.content} block {number}",
                f"it reaches to byte {end} of a file of {record.size} bytes",
                states=self._seeing(ino, epoch),
                inode=ino,
            )

    def _unchanged(self, table: str, thing: str, epoch: int, ino: int) -> None:
        self.scan.problem(
            "change-missing",
            table,
            thing,
            f"epoch {epoch} changed it, but has no change record of it",
            states=self.scan.history.seeing(epoch, ()),
            inode=ino,
        )

    def _links(self, node: Node, found: Iterator[tuple[bytes, bytes]]) -> None:
        ino = node.ino
        for key, value in found:
            if fault := damaged_link_key(key, value):
                self._damaged("link", key.hex(), fault, ino, None)
                continue
            parent, name = keys.link_parts(key)
            epoch = keys.epoch_of(key)
            if self._known("link", f"{ino} {parent}/{text(name)}", epoch, ino):
                node.links.setdefault((parent, name), []).append((epoch, value))
        for (parent, name), versions in node.links.items():
            node.count.add(self.scan, [(epoch, bool(value)) for epoch, value in versions])
            for at, (epoch, value) in enumerate(versions):
                if value:
                    node.named.add(epoch)
                for lineage in self._showing(versions, at):
                    self._mirrored(node, parent, name, epoch, value, lineage)

    def _showing(self, versions: Versions, at: int) -> Iterator[Lineage]:
        """The states that first show one of the versions of a thing."""
        epoch = versions[at][0]
        for state, lineage in self.scan.history.showing(epoch):
            if state == epoch or newest(versions, lineage) == versions[at]:
                yield lineage

    def _mirrored(
        self,
        node: Node,
        parent: int,
        name: bytes,
        epoch: int,
        value: bytes,
        lineage: Lineage,
    ) -> None:
        """A link of an epoch says the same as the directory entry, in a state that shows both."""
        scan, ino = self.scan, node.ino
        record = node.record(lineage)
        if value and (found := scan.reader.get("dirent", keys.dirent_key(parent, name, epoch))):
            kind = records.kind_of(record.mode) if record is not None else value[0]
            if keys.unpack_id(found) == ino and kind == value[0]:
                return
        prefix = keys.dirent_prefix(parent, name)
        if not value and not _points(Snapshot(scan.reader, lineage).newest("dirent", prefix), ino):
            return
        versions = scan.versions("dirent", prefix)
        points = _points(newest(versions, lineage), ino)
        detail = ""
        if value and not points:
            detail = "the inode says that this is a name of it, the directory does not"
        elif not value and points:
            detail = "the directory has this name of the inode, the inode says that it is gone"
        elif value and record is not None and records.kind_of(record.mode) != value[0]:
            detail = (
                f"it says type {value[0]}, the inode has the type {records.kind_of(record.mode)}"
            )
        if detail:
            scan.suspects.add(ino)
            self._entry_problem("link-mirror", "link", parent, name, epoch, versions, detail)

    def _entry_problem(
        self,
        check: str,
        table: str,
        parent: int,
        name: bytes,
        epoch: int,
        versions: Versions,
        detail: str,
        points: bytes = b"",
    ) -> None:
        """Report an entry in the states that show it; with `points`, where its inode is wrong."""
        states = self.scan.history.seeing(epoch, [e for e, _ in versions])
        if points:
            states = [state for state in states if self._inode_fault(points, state[1])]
        self.scan.problem(
            check,
            table,
            f"{parent}/{text(name)}",
            detail,
            states=states,
            paths=self.scan.path_in(parent, name, states),
        )

    def _entries(self, node: Node, found: Iterator[tuple[bytes, bytes]]) -> None:
        name, versions = b"", Versions()
        for key, value in found:
            if fault := damaged_dirent_key(key):
                self._damaged("dirent", key.hex(), fault, node.ino, None)
                continue
            if keys.dirent_name(key) != name:
                self._entry(node, name, versions)
                name, versions = keys.dirent_name(key), []
            epoch = keys.epoch_of(key)
            thing = f"{node.ino}/{text(name)}"
            if not self._known("dirent", thing, epoch, node.ino):
                continue
            if value and len(value) != 9:
                detail = f"its value has {len(value)} bytes, not 9"
                self._damaged("dirent", thing, detail, node.ino, epoch)
                continue
            versions.append((epoch, value))
        self._entry(node, name, versions)

    def _entry(self, node: Node, name: bytes, versions: Versions) -> None:
        """All versions of one directory entry."""
        scan, parent = self.scan, node.ino
        if not versions:
            return
        node.entries.add(scan, [(epoch, bool(value)) for epoch, value in versions])
        node.children.add(
            scan, [(epoch, value[8:] == bytes((_DIRECTORY,))) for epoch, value in versions]
        )
        for at, (epoch, _) in enumerate(versions):
            change = keys.change_dirent_key(epoch, parent, name)
            if epoch and not scan.has("change", change):
                self._unchanged("dirent", f"{parent}/{text(name)}", epoch, parent)
            for lineage in self._showing(versions, at):
                self._shown_entry(parent, name, versions, at, lineage)

    def _shown_entry(
        self, parent: int, name: bytes, versions: Versions, at: int, lineage: Lineage
    ) -> None:
        """A directory entry in a state that shows it."""
        scan, (epoch, value) = self.scan, versions[at]
        ino = keys.unpack_id(value) if value else 0
        check = detail = ""
        if value:
            check, detail = self._target(parent, name, epoch, value, lineage)
        if not detail:
            check = "link-mirror"
            before = next((v for e, v in versions[at + 1 :] if lineage.visible(e)), b"")
            gone = keys.unpack_id(before) if before else 0
            if gone and gone != ino and self._linked(gone, parent, name, lineage):
                scan.suspects.add(gone)
                detail = f"the directory lost this name of inode {gone}, which still has it"
        if detail:
            scan.suspects.update((parent, ino))
            points = value if check == "dirent-inode" else b""
            self._entry_problem(check, "dirent", parent, name, epoch, versions, detail, points)

    def _target(
        self, parent: int, name: bytes, epoch: int, value: bytes, lineage: Lineage
    ) -> tuple[str, str]:
        """(check, what is wrong) of a directory entry that points to something; "" when right."""
        scan, ino = self.scan, keys.unpack_id(value)
        scan.use(ino)
        if fault := self._inode_fault(value, lineage):
            return "dirent-inode", fault
        if not scan.has("link", keys.link_key(ino, parent, name, epoch)):
            return "link-mirror", f"inode {ino} does not have this name in epoch {epoch}"
        return "", ""

    def _inode_fault(self, value: bytes, lineage: Lineage) -> str:
        """What is wrong with the inode that an entry points to, in one state."""
        ino, kind = records.unpack_dirent(value)
        try:
            record = Snapshot(self.scan.reader, lineage).inode(ino)
        except DamagedRecordError:
            return ""  # reported with the inode
        if record is None:
            return f"it points to inode {ino}, which does not exist"
        if records.kind_of(record.mode) != kind:
            return f"it says type {kind}, inode {ino} has the type {records.kind_of(record.mode)}"
        return ""

    def _linked(self, ino: int, parent: int, name: bytes, lineage: Lineage) -> bool:
        found = Snapshot(self.scan.reader, lineage).newest(
            "link", keys.link_prefix(ino, parent, name)
        )
        return bool(found and found[1])

    def _xattrs(self, node: Node, found: Iterator[tuple[bytes, bytes]]) -> None:
        scan, ino, left = self.scan, node.ino, 0
        for key, value in found:
            thing = f"{ino} {text(keys.xattr_name(key))}" if len(key) > 17 else key.hex()
            if fault := damaged_xattr(key, value):
                check, detail = fault
                epoch = keys.epoch_of(key)
                states = scan.history.seeing(epoch, ()) if epoch in scan.history.epochs else ()
                scan.problem(check, "xattr", thing, detail, states=states, inode=ino)
                continue
            epoch = keys.epoch_of(key)
            if not self._known("xattr", thing, epoch, ino):
                continue
            if not node.versions:
                left += 1
            elif epoch and not scan.has("change", keys.change_inode_key(epoch, ino)):
                self._unversioned(node, thing, epoch)
        if left:
            detail = f"{left} extended attributes of an inode that no state has; reclaimable"
            scan.problem("leftover", "xattr", f"{ino}", detail, severity=NOTE)

    def _unversioned(self, node: Node, thing: str, epoch: int) -> None:
        """An attribute of an epoch without a version of its inode: right only when newer versions
        took that one's place in all states."""
        for state, lineage in self.scan.history.showing(epoch):
            seen = newest(node.versions, lineage)
            if seen[0] < epoch if seen and seen[1] else state == epoch:
                self._unchanged("xattr", thing, epoch, node.ino)
                return


def _points(entry: tuple[int, bytes] | None, ino: int) -> bool:
    """Whether a version of a directory entry leads to an inode."""
    return entry is not None and len(entry[1]) == 9 and keys.unpack_id(entry[1]) == ino
