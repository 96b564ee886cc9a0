"""Checks of content: blocks (scrub), extents, and blocks that nothing uses.

Threading: owned by the thread that verifies.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from cowfs.errors import DamagedRecordError
from cowfs.format import checksum, codec, keys, records, version
from cowfs.format.segment import Part, encode_part, may_refer, part_of, sound_beginning
from cowfs.service.verify.history import State
from cowfs.service.verify.report import ERROR, NOTE
from cowfs.service.verify.scan import Scan, newest
from cowfs.service.verify.thinned import Thinned
from cowfs.store.marks import Marks
from cowfs.store.segments import Parts
from cowfs.store.snapshot import Snapshot
from cowfs.types import BLOCK_SIZE

_REFERENCES = 64
"""Decoded reference blocks that are kept, 4 MiB at most."""
_PARTS = 100_000
"""Parts of segments that are noted before they are looked at, some 12 MB."""
_HITS = 200
"""Extents of one damaged block whose paths are named."""
_LAST_BLOCK = ((1 << 63) - 1) // BLOCK_SIZE


@dataclass(slots=True, eq=False)
class Bad:
    """A block that cannot be read, and the extents that need it."""

    check: str
    digest: bytes
    detail: str
    extents: list[tuple[int, int, int]] = field(default_factory=list)
    more: int = 0


class Blocks:
    """The passes over the tables `block` and `extent`, in the order scrub, extents, unused.

    bad: what cannot be read, by hash. A delta shares the entry of its damaged reference. thinned:
    what `extents` learns of extents that were given up.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._used = Marks()
        self.thinned = Thinned(scan)
        self.bad: dict[bytes, Bad] = {}
        self._references: OrderedDict[bytes, bytes] = OrderedDict()
        self._parts = Parts()
        self._later: list[tuple[bytes, bytes]] = []
        self._any_parts = False
        self._long: set[bytes] = set()

    # -- scrub --------------------------------------------------------------------------------

    def scrub(self) -> None:
        """Decode every block and compare it with its hash."""
        for digest, value in self._scan.each("block"):
            if len(digest) != codec.HASH_SIZE:
                detail = f"its key has {len(digest)} bytes, not {codec.HASH_SIZE}"
                self._scan.problem("record", "block", digest.hex(), detail)
                continue
            self._scrub(digest, value)
            if len(self._parts) >= _PARTS:
                self._scrub_parts()
        self._scrub_parts()
        for _, digest in sorted(self._later):  # those that lie side by side one after the other
            self._scrub(digest, self._scan.reader.get("block", digest) or b"", last=True)
        self._later.clear()
        self._references.clear()
        self._see_that_parts_are_told_of()

    def _scrub(self, digest: bytes, value: bytes, *, last: bool = False) -> None:
        """last: parts were looked at, so that what refers to them can be."""
        reference = None
        if (part := part_of(value)) is not None:
            self._parts.add(digest, part)
            return
        if (wanted := codec.delta_reference(value)) is not None:
            stored = self._needed(digest, value, wanted)
            if stored is None:
                return
            if not last and (part := part_of(stored)) is not None:
                self._later.append((part.segment + part.start.to_bytes(4, "big"), digest))
                return
            reference = self._reference(wanted, stored)
            if reference is None:
                self.bad[digest] = self.bad[wanted]
                return
        try:
            data = codec.decode_block(value, digest, reference)
        except DamagedRecordError as error:
            self._found("block-damaged", digest, error.details["detail"])
            return
        if not data:
            self._found("block-damaged", digest, "it has no bytes")
        elif len(data) > BLOCK_SIZE:
            self._long.add(digest)

    def _needed(self, digest: bytes, value: bytes, wanted: bytes) -> bytes | None:
        """The stored value that a block needs, None (and noted) when it cannot be that."""
        self._used.add(wanted)
        stored = self._scan.reader.get("block", wanted)
        if stored is None:
            detail = f"its reference {wanted.hex()[:12]} is missing"
        elif not may_refer(value, stored):
            detail = f"its reference {wanted.hex()[:12]} is itself a delta"
        else:
            return stored
        self._found("block-reference", digest, detail)
        return None

    def _scrub_parts(self) -> None:
        """Compare what segments have with the hashes of the parts."""
        for segment, parts in self._parts.take():
            self._any_parts = True
            first, start, end = parts[0]
            value = encode_part(Part(segment, start, end))
            stored = self._needed(first, value, segment)
            if stored is None:
                self.bad.update((digest, self.bad[first]) for digest, _, _ in parts)
                continue
            try:
                data = codec.decode_block(stored, segment)
            except DamagedRecordError as error:
                self._found("block-damaged", segment, error.details["detail"])
                data = sound_beginning(stored)
            for digest, start, end in parts:
                fits = 0 < end - start <= BLOCK_SIZE
                if fits and codec.block_hash(data[start:end]) == digest:
                    continue
                if segment in self.bad:
                    self.bad[digest] = self.bad[segment]
                elif end > len(data):
                    detail = f"its segment {segment.hex()[:12]} has {len(data)} bytes, not {end}"
                    self._found("block-reference", digest, detail)
                else:
                    detail = "its bytes in its segment do not match its hash"
                    self._found("block-damaged", digest, detail)

    def _see_that_parts_are_told_of(self) -> None:
        """Programs that do not know segments must not take them for damage."""
        value = self._scan.reader.get("meta", checksum.FORMAT_KEY) or b""
        try:
            told = version.decode_format(value).incompatible & version.SEGMENTS
        except DamagedRecordError:
            return  # reported by itself
        if self._any_parts and not told:
            self._scan.problem("format", "meta", "format", "it does not tell of segments")

    def _reference(self, digest: bytes, stored: bytes) -> bytes | None:
        """The raw bytes of a reference, None (and noted) when it is damaged. It may be a part."""
        data = self._references.get(digest)
        if data is not None:
            self._references.move_to_end(digest)
            return data
        if digest in self.bad:
            return None
        reader = self._scan.reader
        try:
            table = reader.store.tables["block"]
            data = reader.store.segments.decode(reader.txn, table, stored, digest)
        except DamagedRecordError as error:
            self._found("block-damaged", digest, error.details["detail"])
            return None
        self._references[digest] = data
        if len(self._references) > _REFERENCES:
            self._references.popitem(last=False)
        return data

    def _found(self, check: str, digest: bytes, detail: str) -> None:
        self.bad.setdefault(digest, Bad(check, digest, detail))

    # -- extents ------------------------------------------------------------------------------

    def extents(self) -> None:
        """Every extent points to a block that exists, and its epoch tells of it."""
        scan = self._scan
        owner, content, ownerless = 0, -1, 0
        orphans = {keys.unpack_id(value) for _, value in scan.reader.scan("orphan")}
        for key, digest in scan.each("extent"):
            if len(key) != 24 or len(digest) not in (0, 1, codec.HASH_SIZE):
                detail = f"its key has {len(key)} bytes, its value {len(digest)}"
                scan.problem("record", "extent", key.hex(), detail)
                continue
            if len(digest) == 1 and digest not in (records.EXTENT_BASE, records.EXTENT_THINNED):
                scan.problem("record", "extent", key.hex(), f"its value is {digest[0]}")
                continue
            if keys.unpack_id(key) != content:
                content = keys.unpack_id(key)
                scan.use(content)
                owner = self._owner(content)
                ownerless += not owner and content not in orphans
            self._extent(key, digest, content, owner)
        if ownerless:
            detail = f"{ownerless} contents belong to no inode; reclaimable"
            scan.problem("leftover", "extent", "", detail, severity=NOTE)
        self.thinned.finish()
        for bad in dict.fromkeys(self.bad.values()):
            self._report(bad)

    def _owner(self, content: int) -> int:
        """The inode that a content belongs to, 0 when there is none."""
        owner = self._scan.owners.get(content)
        if owner is None and self._scan.has_prefix("inode", keys.pack_id(content)):
            owner = content
        return owner or 0

    def _extent(self, key: bytes, digest: bytes, content: int, owner: int) -> None:
        scan = self._scan
        number, epoch = keys.extent_block(key), keys.epoch_of(key)
        thing = f"content {content} block {number}"
        if epoch not in scan.history.epochs:
            detail = f"it belongs to epoch {epoch}, which does not exist"
            scan.problem("record-epoch", "extent", thing, detail)
            return
        if number > _LAST_BLOCK:
            scan.problem("record", "extent", thing, "it lies beyond the largest file size")
            return
        if epoch and owner:
            self._changed(thing, content, epoch, owner)
        if digest == records.EXTENT_THINNED:
            self.thinned.look(content, number, epoch, owner)
        if len(digest) != codec.HASH_SIZE:
            return
        self._used.add(digest)
        if digest in self._long:
            detail = f"block {digest.hex()[:12]} is a segment, which is no part of a file"
            scan.problem(
                "extent-block",
                "extent",
                thing,
                detail,
                states=self._showing(content, number, epoch),
                inode=owner,
            )
            return
        bad = self.bad.get(digest)
        if bad is None and not scan.has("block", digest):
            detail = f"block {digest.hex()[:12]} does not exist"
            check = "block-lost" if b"block\0" + digest in scan.lost else "extent-block"
            bad = self.bad[digest] = Bad(check, digest, detail)
        if bad is None:
            return
        if len(bad.extents) < _HITS:
            bad.extents.append((content, number, epoch))
        else:
            bad.more += 1

    def _changed(self, thing: str, content: int, epoch: int, owner: int) -> None:
        """An epoch that wrote a block of an inode that it shows has a version of that inode."""
        scan = self._scan
        if scan.has("inode", keys.inode_key(owner, epoch)) or owner in scan.suspects:
            return
        for _, lineage in scan.history.showing(epoch):
            seen = Snapshot(scan.reader, lineage).newest("inode", keys.pack_id(owner))
            if seen is None or not seen[1] or seen[0] >= epoch:
                continue  # a newer version took the place of that one
            if records.unpack_inode(seen[1]).content == content:
                scan.problem(
                    "change-missing",
                    "extent",
                    thing,
                    f"epoch {epoch} wrote it, but has no version of inode {owner}",
                    states=scan.history.seeing(epoch, ()),
                    inode=owner,
                )
                return

    def _report(self, bad: Bad) -> None:
        scan, table = self._scan, "extent" if bad.check == "extent-block" else "block"
        names: dict[str, None] = {}
        paths: dict[bytes, None] = {}
        contents: dict[int, None] = {}
        for content, number, epoch in bad.extents:
            contents[self._owner(content)] = None
            states = self._showing(content, number, epoch)
            names.update(dict.fromkeys(name for name, _ in states))
            paths.update(dict.fromkeys(scan.paths(self._owner(content), states)))
        order = {name: at for at, (name, _) in enumerate(scan.history.states)}
        detail = bad.detail
        if contents:
            inodes = ", ".join(str(ino) for ino in sorted(contents) if ino)
            detail += f"; inodes {inodes}" if inodes else ""
            detail += f"; {bad.more} more extents need it" if bad.more else ""
        else:
            detail += "; no extent needs it"
        scan.problem(
            bad.check,
            table,
            f"block {bad.digest.hex()}",
            detail,
            checkpoints=sorted(names, key=lambda name: order[name]),
            paths=paths,
            severity=NOTE if bad.check == "block-lost" else ERROR,
        )

    def _showing(self, content: int, number: int, epoch: int) -> list[State]:
        """The states in which a version of a block is part of a file."""
        scan, owner = self._scan, self._owner(content)
        if not owner:
            return []
        versions = scan.versions("extent", keys.extent_prefix(content, number))
        given_back = [e for e, value in versions if value == records.EXTENT_BASE]
        inodes = scan.versions("inode", keys.pack_id(owner))
        found = []
        for state in scan.history.states:
            lineage = state[1]
            seen = newest(versions, lineage)
            inode = newest(inodes, lineage)
            if seen is None or inode is None or not inode[1]:
                continue
            if seen[0] != epoch and not (epoch == 0 and seen[0] in given_back):
                continue
            try:
                record = records.unpack_inode(inode[1])
            except DamagedRecordError:
                continue
            end = record.size if epoch else record.base_size
            if record.content == content and number * BLOCK_SIZE < end:
                found.append(state)
        return found

    # -- unused -------------------------------------------------------------------------------

    def unused(self) -> None:
        """Note blocks that no extent and no delta needs; they do no harm."""
        scan = self._scan
        count = size = done = 0
        total = scan.entries("block")
        with scan.reader.txn.cursor(db=scan.reader.store.tables["block"]) as cursor:
            found = cursor.set_range(b"")
            while found:
                digest = cursor.key()
                if not done % 4096:
                    scan.progress("unused", done, total)
                done += 1
                if not self._used.has(digest):
                    count += 1
                    size += len(cursor.stored())
                found = cursor.next()
        scan.progress("unused", total, total)
        if count:
            detail = f"{count} blocks ({size} bytes) that nothing needs any more; reclaimable"
            scan.problem("unreferenced-blocks", "block", "", detail, severity=NOTE)
