"""What states show, read without the code under test: by asking for every version in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from cowfs.format import codec, keys, records
from cowfs.service.collecting import UNSWEPT, Collected, Pace, Thinning, collect
from cowfs.service.verify import verify_store
from cowfs.store.lineage import Lineage
from cowfs.store.snapshot import Reader, Snapshot, read_block
from cowfs.tree.changes import differing
from cowfs.types import BLOCK_SIZE
from cowfs.volume.base import Base
from cowfs.volume.removing import remove
from tests.support.volumes import Handle, Rig

THINNED = b"\0 thinned \0"
"""As a content: it is not kept any more."""
_GIVEN_UP = b"\2"


class Shown(NamedTuple):
    """What a state shows of a path. content: `THINNED` if any of it is not kept any more."""

    ino: int
    record: records.InodeRecord
    xattrs: tuple[tuple[bytes, bytes], ...]
    content: bytes


State = dict[bytes, Shown]


def look(rig: Rig, epoch: int) -> State:
    """Everything that the state of an epoch shows, as committed."""
    with Reader(rig.volume.store) as reader:
        snapshot = Snapshot(reader, reader.lineage(epoch))
        found: State = {}
        pending = [(b"", 1)]
        while pending:
            path, ino = pending.pop()
            record = snapshot.inode(ino)
            assert record is not None, f"{path!r} has no inode in epoch {epoch}"
            xattrs = tuple(sorted(snapshot.xattrs(ino).items()))
            kind = records.kind_of(record.mode)
            content = _content(rig, snapshot, record) if kind == 8 else b""
            found[path] = Shown(ino, record, xattrs, content)
            for name, below, _ in snapshot.entries(ino) if kind == 4 else ():
                pending.append((path + b"/" + name if path else name, below))
        return found


def _content(rig: Rig, snapshot: Snapshot, record: records.InodeRecord) -> bytes:
    parts = []
    for number in range(-(-record.size // BLOCK_SIZE)):
        digest, limit = snapshot.block_source(record.content, number, record.base_size)
        if digest == _GIVEN_UP:
            return THINNED
        if digest is None:
            piece = _of_base(rig, snapshot.reader, record.content, number)
        else:
            piece = read_block(snapshot.reader, digest) if digest else b""
        parts.append(piece[:limit].ljust(BLOCK_SIZE, b"\0"))
    return b"".join(parts)[: record.size]


def _of_base(rig: Rig, reader: Reader, content: int, number: int) -> bytes:
    assert rig.base is not None
    place: list[str] = []
    while content != 1:
        origin = records.unpack_origin(reader.get("origin", keys.pack_id(content)) or b"")
        place.insert(0, origin.name.decode("utf-8", "surrogateescape"))
        content = origin.parent
    with open(Path(rig.base, *place), "rb") as file:
        file.seek(number * BLOCK_SIZE)
        return file.read(BLOCK_SIZE)


def check_differences(rig: Rig, states: dict[int, State]) -> None:
    """What `differing` tells of any two states is how their trees differ."""
    with Reader(rig.volume.store) as reader:
        snapshots = {epoch: Snapshot(reader, reader.lineage(epoch)) for epoch in states}
        for one, before in states.items():
            for two, after in states.items():
                if one < two:
                    told = differing(snapshots[one], snapshots[two])
                    check_told(before, after, told.inodes, told.names)


def check_told(
    before: State, after: State, inodes: set[int], names: set[tuple[int, bytes]]
) -> None:
    """Names and inodes that are told to differ are those that do."""
    old, new = _named(before), _named(after)
    assert names == {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    was = {shown.ino: shown for shown in before.values()}
    now = {shown.ino: shown for shown in after.values()}
    differ = {ino for ino in was.keys() | now.keys() if was.get(ino) != now.get(ino)}
    assert differ <= inodes, "a difference is not told"
    # A file that was overwritten with the same bytes may be told, too.
    for ino in inodes - differ:
        assert was[ino].content == now[ino].content


def _named(state: State) -> dict[tuple[int, bytes], int]:
    found = {}
    for path, shown in state.items():
        if path:
            above, _, name = path.rpartition(b"/")
            found[(state[above].ino, name)] = shown.ino
    return found


def stored_bytes(rig: Rig) -> int:
    """What blocks take."""
    rig.volume.look_again()
    return sum(len(value) for _, value in rig.volume.reader.scan("block"))


# -- what must be gone ----------------------------------------------------------------------------


def check_nothing_left(rig: Rig, kept: Iterable[int], held: Iterable[Handle] = ()) -> None:
    """Every version is seen by a kept state, and every block is named.

    held: what is open. A file without a name has its data until it is closed.
    """
    nameless = {handle.inode.content for handle in held if not handle.inode.nlink}
    with Reader(rig.volume.store) as reader:
        head = rig.volume.branch.head
        parent = reader.epoch(head).parent
        lines = [reader.lineage(epoch) for epoch in {*kept, parent, 0}]
        contents = {
            (records.unpack_inode(value).content, line)
            for line in [*lines, reader.lineage(head)]
            for _, value in _seen(reader, "inode", line).values()
            if value
        }
        owned = {content for content, _ in contents}
        for table in ("inode", "dirent", "link", "xattr", "extent"):
            wanted = {0, head}
            seen = [_seen(reader, table, line) for line in lines]
            shown = {(thing, epoch) for state in seen for thing, (epoch, _) in state.items()}
            for key in reader.keys(table):
                epoch = keys.epoch_of(key)
                if epoch in wanted or (table == "extent" and keys.unpack_id(key) in nameless):
                    continue
                assert (key[:-8], epoch) in shown, (table, key.hex(), epoch)
                assert table != "extent" or keys.unpack_id(key) in owned, key.hex()
        named = {value for _, value in reader.scan("extent") if len(value) == codec.HASH_SIZE}
        blocks = dict(reader.scan("block"))
        for _ in range(2):  # a delta may need a part, and that a segment
            named |= {ref for d in named if (ref := codec.delta_reference(blocks[d])) is not None}
        assert blocks.keys() <= named, "blocks are left that nothing refers to"


def _seen(reader: Reader, table: str, line: Lineage) -> dict[bytes, tuple[int, bytes]]:
    found: dict[bytes, tuple[int, bytes]] = {}
    for key, value in reader.scan(table):
        if line.visible(keys.epoch_of(key)):
            found.setdefault(key[:-8], (keys.epoch_of(key), value))
    return found


# -- doing it -------------------------------------------------------------------------------------


class Steps(Pace):
    """Ends a run after so many steps."""

    def __init__(self, most: int = 1 << 60) -> None:
        super().__init__()
        self.most = most

    def go_on(self) -> bool:
        self.most -= 1
        return self.most >= 0


class BeforeTheSweep(Pace):
    """Does something once, between the marking of blocks and their sweep."""

    def __init__(self, rig: Rig, work: Callable[[], None]) -> None:
        super().__init__()
        self._store = rig.volume.store
        self._work = [work]

    def go_on(self) -> bool:
        with self._store.reading() as txn:
            unswept = txn.get(UNSWEPT, db=self._store.tables["meta"])
        if unswept is not None and self._work:
            self._work.pop()()
        return True


def forget(rig: Rig, ids: Iterable[str]) -> None:
    """Remove checkpoints."""
    rig.volume.sync()
    reader = rig.volume.reader
    found = [reader.get("checkpoint", name.encode()) or b"" for name in ids]
    remove(rig.volume, [records.decode(value, records.CheckpointRecord) for value in found])
    rig.volume.sync()


def collect_garbage(rig: Rig, most: int = 1 << 60, thinning: Thinning | None = None) -> Collected:
    """Collect, but only so many steps."""
    return collect(
        rig.engine,
        contextlib.nullcontext(),
        Steps(most),
        lambda **_: None,
        thorough=True,
        thinning=thinning,
    )


def check_verified(rig: Rig) -> None:
    """`verify` finds nothing in the open store."""
    with Reader(rig.volume.store) as reader:
        base = Base(rig.base_fd) if rig.base_fd is not None else None
        report = verify_store(reader, base)
        if base is not None:
            base.forget()
    assert not report.problems, "\n".join(map(str, report.problems))
