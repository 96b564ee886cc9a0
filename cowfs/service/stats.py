"""`cowfs stats`: what a store takes, what for, and what its layers save.

The summary is made of LMDB's counters, whatever the size of the store. The details look at every
extent, every inode record and the header of every block: some microseconds each, and some hundred
bytes of memory for each block.

Threading: as the workspace.
"""

from __future__ import annotations

import heapq
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from cowfs.errors import DamagedRecordError
from cowfs.format import codec, keys, records
from cowfs.format.sessions import piece_head
from cowfs.service.states import States
from cowfs.service.workspace import ReadOnly
from cowfs.store.headers import Header, block_headers

_BLOCKS = 10_000
_TOLD_EVERY = 5_000
BIGGEST = 10
_DIGITS = 40
_LOW = (1 << _DIGITS) - 1

Progress = Callable[[str, int, int], None]
"""Called with what is looked at, how many are done, of how many."""


@dataclass(frozen=True)
class Table:
    """One table of the store: records, and bytes of the pages that it takes."""

    name: str
    entries: int
    bytes: int


@dataclass(frozen=True)
class Summary:
    """disk_bytes: of the data file on its disk. used_bytes, free_bytes: its pages that hold
    something, and those that do not and have room on the disk. tables: greatest first. checkpoints,
    epochs, records: how many there are."""

    disk_bytes: int
    used_bytes: int
    free_bytes: int
    quota_bytes: int
    checkpoints: int
    epochs: int
    records: int
    tables: list[Table]


def summary(workspace: ReadOnly) -> Summary:
    """What counters tell."""
    reader, store = workspace.reader, workspace.store
    room = store.room()
    tables = []
    for name, table in store.tables.items():
        counts = reader.txn.stat(table)
        pages = counts["branch_pages"] + counts["leaf_pages"] + counts["overflow_pages"]
        tables.append(Table(name, counts["entries"], pages * counts["psize"]))
    tables.sort(key=lambda table: (-table.bytes, table.name))
    return Summary(
        disk_bytes=store.bytes_used(),
        used_bytes=room.used,
        free_bytes=room.inside,
        quota_bytes=room.quota,
        checkpoints=reader.count("checkpoint"),
        epochs=reader.count("epoch"),
        records=sum(table.entries for table in tables),
        tables=tables,
    )


@dataclass
class Stored:
    """Blocks stored in one way. raw: bytes that they hold. stored: bytes of their records."""

    blocks: int = 0
    raw: int = 0
    stored: int = 0

    def add(self, header: Header) -> None:
        self.blocks += 1
        self.raw += header.length
        self.stored += header.size


@dataclass(frozen=True)
class Part:
    """What one checkpoint or path accounts for: blocks that nothing older had, and their bytes as
    they are stored. id: of a checkpoint, "@" for the present state; label, message: its own."""

    name: str
    blocks: int
    stored: int
    label: str = ""
    message: str = ""


@dataclass
class Details:
    """Bytes. logical: of the files of the present state. logical_all: of those of all checkpoints,
    as if each were a copy. Both know only what was looked into since the first mount.
    written: of the blocks that were written, each time. raw: of the different ones of these.
    stored: of their records, and of what they take of segments. unused: the same of blocks that
    nothing names. by_codec: how the used ones are stored. checkpoints, paths: the greatest. said,
    said_stored: bytes of conversations of agents, and of their records."""

    logical: int = 0
    logical_all: int = 0
    written: int = 0
    raw: int = 0
    stored: int = 0
    unused: int = 0
    missing: int = 0
    damaged: int = 0
    said: int = 0
    said_stored: int = 0
    by_codec: dict[str, Stored] = field(default_factory=dict)
    checkpoints: list[Part] = field(default_factory=list)
    paths: list[Part] = field(default_factory=list)

    @property
    def saved(self) -> dict[str, int]:
        """What each layer saves: history (what did not change from one checkpoint to the next, and
        what only the directory has), dedup (equal blocks), zstd, delta, segments."""
        deltas = [self.by_codec[name] for name in ("delta", "patch") if name in self.by_codec]
        plain = [self.by_codec[name] for name in ("raw", "zstd") if name in self.by_codec]
        parts = [self.by_codec["part"]] if "part" in self.by_codec else []
        return {
            "history": self.logical_all - self.written,
            "dedup": self.written - self.raw,
            "zstd": sum(one.raw - one.stored for one in plain),
            "delta": sum(one.raw - one.stored for one in deltas),
            "segments": sum(one.raw - one.stored for one in parts),
        }

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "saved": self.saved}


def details(workspace: ReadOnly, progress: Progress) -> Details:
    """Look at everything but the bytes of blocks. What is damaged is counted and left out."""
    return _Survey(workspace, progress).run()


class _Survey:
    """_uses: by hash the first epoch that names a block, the content that it is of there, and how
    often it is named, in one number. _by_content: blocks and bytes of each content."""

    def __init__(self, workspace: ReadOnly, progress: Progress) -> None:
        self._workspace = workspace
        self._reader = workspace.reader
        self._states = States(workspace.reader, workspace.branch.head, lambda _: None)
        self._progress = progress
        self._found = Details()
        self._uses: dict[bytes, int] = {}
        self._parts: list[Header] = []
        self._unnamed: dict[bytes, Header] = {}
        self._by_epoch: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._by_content: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def run(self) -> Details:
        self._extents()
        self._blocks()
        self._inodes()
        self._conversations()
        self._found.checkpoints = self._greatest_checkpoints()
        return self._found

    def _scan(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        total = self._reader.count(table)
        for done, row in enumerate(self._reader.scan(table, damaged=self._damaged)):
            if done % _TOLD_EVERY == 0:
                self._progress(table, done, total)
            yield row

    def _damaged(self, _key: bytes, _error: DamagedRecordError) -> None:
        self._found.damaged += 1

    def _extents(self) -> None:
        uses = self._uses
        for key, value in self._scan("extent"):
            if len(value) != codec.HASH_SIZE:
                continue
            known = uses.get(value, 0)
            place = keys.epoch_of(key) << 64 | keys.unpack_id(key)
            first = known >> _DIGITS
            if not known or place < first:
                first = place
            uses[value] = first << _DIGITS | min((known & _LOW) + 1, _LOW)

    def _blocks(self) -> None:
        found, done = self._found, 0
        more: bytes | None = b""
        while more is not None:
            headers, more, total = block_headers(self._workspace.store, more, _BLOCKS)
            for header in headers:
                self._sort(header)
            done += len(headers)
            self._progress("block", done, total)
        for header in self._parts:
            self._block(self._with_share(header))
        found.unused += sum(header.size for header in self._unnamed.values())
        found.missing = len(self._uses)
        self._uses.clear()

    def _sort(self, header: Header) -> None:
        """Parts wait until it is known what their segments take."""
        if header.codec == codec.PART:
            self._parts.append(header)
        elif header.digest in self._uses:
            self._block(header)
        else:
            self._unnamed[header.digest] = header

    def _with_share(self, part: Header) -> Header:
        """A part with what it takes of its segment, by its length."""
        segment = self._unnamed.get(part.reference or b"")
        if segment is None:
            return part
        share = segment.size * part.length // max(segment.length, 1)
        self._unnamed[segment.digest] = segment._replace(
            size=segment.size - share, length=segment.length - part.length
        )
        return part._replace(size=part.size + share)

    def _block(self, header: Header) -> None:
        found = self._found
        use = self._uses.pop(header.digest, None)
        if use is None:
            found.unused += header.size
            return
        found.written += header.length * (use & _LOW)
        found.raw += header.length
        found.stored += header.size
        name = _CODECS.get(header.codec, "other")
        found.by_codec.setdefault(name, Stored()).add(header)
        epoch, content = use >> (_DIGITS + 64), use >> _DIGITS & (1 << 64) - 1
        for counter in (self._by_epoch[epoch], self._by_content[content]):
            counter["blocks"] += 1
            counter["stored"] += header.size

    def _inodes(self) -> None:
        """Sizes of files in all states, and which inode each content is of."""
        tree = _Epochs(self._states)
        by_inode: defaultdict[int, Counter[str]] = defaultdict(Counter)
        newest: dict[int, int] = {}
        current, versions = 0, list[tuple[int, int]]()
        for key, value in self._scan("inode"):
            ino, epoch = keys.unpack_id(key), keys.epoch_of(key)
            if ino != current:
                self._count(tree, versions)
                current, versions = ino, []
            size = 0
            if value:
                try:
                    record = records.unpack_inode(value)
                except DamagedRecordError:
                    self._found.damaged += 1
                    continue
                if stat.S_ISREG(record.mode):
                    size = record.size
                    if (counter := self._by_content.pop(record.content, None)) is not None:
                        by_inode[ino] += counter
                        newest.setdefault(ino, epoch)
            versions.append((epoch, size))
        self._count(tree, versions)
        self._found.paths = self._greatest_paths(by_inode, newest)

    def _count(self, tree: _Epochs, versions: list[tuple[int, int]]) -> None:
        """Add the sizes of an inode in all states; its versions come newest first."""
        head = self._states.head
        for at, (epoch, size) in enumerate(versions):
            before = next((s for e, s in versions[at + 1 :] if tree.is_ancestor(e, epoch)), 0)
            self._found.logical_all += tree.states(epoch) * (size - before)
        self._found.logical += next((s for e, s in versions if tree.is_ancestor(e, head)), 0)

    def _conversations(self) -> None:
        if "piece" not in self._reader.store.tables:
            return
        for _, value in self._scan("piece"):
            try:
                self._found.said += piece_head(value)[0]
            except DamagedRecordError:
                self._found.damaged += 1
                continue
            self._found.said_stored += len(value)

    def _greatest_checkpoints(self) -> list[Part]:
        by_state: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for epoch, counter in self._by_epoch.items():
            by_state[min(self._states.showing(epoch), default=epoch)] += counter
        out = []
        for epoch, counter in _greatest(by_state):
            record = self._states.checkpoint(epoch) if epoch != self._states.head else None
            name = record.id if record else "@" if epoch == self._states.head else f"epoch {epoch}"
            label, message = (record.label, record.message) if record else ("", "")
            out.append(Part(name, counter["blocks"], counter["stored"], label, message))
        return out

    def _greatest_paths(
        self, by_inode: dict[int, Counter[str]], newest: dict[int, int]
    ) -> list[Part]:
        by_path: defaultdict[bytes, Counter[str]] = defaultdict(Counter)
        for ino, counter in _greatest(by_inode, BIGGEST * 20):
            by_path[self._path(ino, newest[ino])] += counter
        return [
            Part(os.fsdecode(path), counter["blocks"], counter["stored"])
            for path, counter in _greatest(by_path)
        ]

    def _path(self, ino: int, epoch: int) -> bytes:
        """A path of a file: now, or when it was last changed."""
        for at in (self._states.head, epoch):
            try:
                if names := self._states.snapshot(at).names_of(ino):
                    return names[0]
            except DamagedRecordError:
                continue
        return b"?"


_CODECS = {
    codec.RAW: "raw",
    codec.ZSTD: "zstd",
    codec.DELTA: "delta",
    codec.PATCH: "patch",
    codec.PART: "part",
}


def _greatest(
    parts: dict[Any, Counter[str]], most: int = BIGGEST
) -> list[tuple[Any, Counter[str]]]:
    return heapq.nlargest(most, parts.items(), key=lambda item: item[1]["stored"])


class _Epochs:
    """The tree of epochs: which comes from which, and how many states see what one wrote."""

    def __init__(self, states: States) -> None:
        parents: dict[int, int] = {}
        for key, value in states.reader.scan("epoch"):
            epoch = keys.unpack_id(key)
            parents[epoch] = records.decode(value, records.EpochRecord).parent
        self._seen = dict.fromkeys(parents, 0)
        for state in {*states.all(), 0} if states.checkpoint(0) else set(states.all()):
            self._seen[state] = 1
        size = dict.fromkeys(parents, 1)
        for epoch in sorted(parents, reverse=True):  # children are younger than their parents
            above = parents[epoch]
            if epoch and above in size:
                size[above] += size[epoch]
                self._seen[above] += self._seen[epoch]
        self._start: dict[int, int] = {}
        free: dict[int, int] = {}
        for epoch in sorted(parents):
            above = parents[epoch]
            start = free[above] if epoch and above in free else 0
            self._start[epoch] = start
            free[epoch] = start + 1
            if epoch and above in free:
                free[above] = start + size[epoch]
        self._size = size

    def is_ancestor(self, one: int, other: int) -> bool:
        """Whether an epoch is another one, or one that it comes from."""
        if one not in self._start or other not in self._start:
            return False
        return 0 <= self._start[other] - self._start[one] < self._size[one]

    def states(self, epoch: int) -> int:
        """How many states see an epoch."""
        return self._seen.get(epoch, 0)
