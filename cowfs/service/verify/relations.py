"""Checks of what the tables say together of an inode: its names, its entries, its parents.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

import stat

from cowfs.format import records
from cowfs.service.verify.nodes import Node
from cowfs.service.verify.scan import Scan, newest
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Snapshot


class Relations:
    """The checks, one node after the other."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._rooted: set[int] = {1}

    def check(self, node: Node) -> None:
        """A node of which everything was read."""
        node.named = {at for e in node.named for at, _ in self._scan.history.showing(e)}
        for epoch, lineage in sorted(node.touched(self._scan).items(), key=lambda item: item[0]):
            record, links = node.record(lineage), node.count.at(lineage)
            if record is None:
                self._absent(node, epoch, lineage, links)
            elif node.ino == 1:
                self._root(node, epoch, record, lineage, links)
            elif stat.S_ISDIR(record.mode):
                self._directory(node, epoch, record, lineage, links)
            else:
                self._file(node, epoch, record, links)
            if record is None or not stat.S_ISDIR(record.mode):
                self._no_entries(node, epoch, record, lineage)

    def _fault(self, check: str, node: Node, epoch: int, detail: str) -> None:
        """Something that the tables say together of an inode from an epoch on."""
        newer = tuple(other for other in node.touched(self._scan) if other > epoch)
        self._scan.derived.append((check, node.ino, detail, epoch, newer))

    def _absent(self, node: Node, epoch: int, lineage: Lineage, links: int) -> None:
        """The inode does not exist at an epoch: no name may be left."""
        removed = newest(node.versions, lineage)
        if links and removed and epoch not in node.named:
            detail = f"it was removed in epoch {epoch}, but has {links} names"
            self._fault("dirent-inode", node, epoch, detail)

    def _no_entries(
        self, node: Node, epoch: int, record: records.InodeRecord | None, lineage: Lineage
    ) -> None:
        """What is no directory has no entries.

        Base directories are listed into epoch 0, also one that came into being later.
        """
        left = node.entries.at(lineage)
        if not left or (epoch == 0 and self._scan.origin(node.ino) is not None):
            return
        what = "is not a directory" if record else "does not exist"
        self._fault("dirent-parent", node, epoch, f"it {what}, but has {left} entries")

    def _root(
        self, node: Node, epoch: int, record: records.InodeRecord, lineage: Lineage, links: int
    ) -> None:
        if links:
            self._fault("directory-parent", node, epoch, f"the root has {links} names")
        if not stat.S_ISDIR(record.mode):
            self._fault("inode-fields", node, epoch, "the root is not a directory")
        else:
            self._subdirectories(node, epoch, record, lineage)

    def _directory(
        self, node: Node, epoch: int, record: records.InodeRecord, lineage: Lineage, links: int
    ) -> None:
        if links == 0:
            self._fault("inode-links", node, epoch, "no directory has it")
            return
        if links > 1:
            self._fault("directory-parent", node, epoch, f"it has {links} names")
        elif epoch in node.named and self._in_cycle(node.ino, lineage):
            self._fault("directory-parent", node, epoch, "it lies below itself")
        self._subdirectories(node, epoch, record, lineage)

    def _subdirectories(
        self, node: Node, epoch: int, record: records.InodeRecord, lineage: Lineage
    ) -> None:
        origin = self._scan.origin(node.ino)
        if origin is not None and origin.state != records.ORIGIN_DONE:
            # Its entries are not in the store, only what the base counted.
            if origin.state == records.ORIGIN_UNLISTED and (left := node.entries.at(lineage)):
                detail = f"the directory was not listed yet, but has {left} entries"
                self._fault("origin", node, epoch, detail)
            return
        children = node.children.at(lineage)
        if record.nlink != 2 + children:
            detail = f"nlink is {record.nlink}, with {children} sub-directories"
            self._fault("directory-nlink", node, epoch, detail)

    def _in_cycle(self, ino: int, lineage: Lineage) -> bool:
        """Whether a directory's parents lead back to it. Loose ends are reported elsewhere."""
        snapshot, seen, at = Snapshot(self._scan.reader, lineage), set(), ino
        base = lineage.head == 0
        while at != 1 and not (base and at in self._rooted):
            if at in seen:
                return at == ino or ino in seen
            seen.add(at)
            links = snapshot.links(at)
            if not links:
                return False
            at = links[0][0]
        if base:
            self._rooted |= seen
        return False

    def _file(self, node: Node, epoch: int, record: records.InodeRecord, links: int) -> None:
        external = record.flags & records.INODE_EXTERNAL_LINKS
        if links > record.nlink or (links and links < record.nlink and not external):
            self._fault("file-nlink", node, epoch, f"nlink is {record.nlink}, with {links} names")
        elif not links and not external:
            self._fault("inode-links", node, epoch, "no directory has it")
