"""The volume: store, writer, base directory and views of one workspace.

`quiesce` freezes what changed into a transaction group and submits it; `reap` takes back what was
committed. Between the two the objects stay pinned in memory, so a read never sees an old version.

Threading: owned by one thread (see the package). `Volume.writer.wait` may be called anywhere.
"""

from __future__ import annotations

import errno
import logging
from collections import OrderedDict, deque
from pathlib import Path

from cowfs.errors import DamagedRecordError, StoreDamagedError
from cowfs.format import codec, keys, records
from cowfs.store.env import Store, create_store, open_store
from cowfs.store.group import TransactionGroup
from cowfs.store.lineage import Lineage
from cowfs.store.mapped import MappedBlocks
from cowfs.store.rewriting import Progress, silent
from cowfs.store.snapshot import Reader, Snapshot, read_block
from cowfs.store.steps import reached
from cowfs.store.writer import Writer, now
from cowfs.volume import posix
from cowfs.volume.audit import Audit
from cowfs.volume.base import Base, BaseEntry
from cowfs.volume.browsing import Visits
from cowfs.volume.external import External
from cowfs.volume.freezing import freeze
from cowfs.volume.git_state import Elsewhere
from cowfs.volume.importing import Importer, root_records
from cowfs.volume.inode import NO_BLOCKS, Buffer, Inode
from cowfs.volume.posix import PosixError
from cowfs.volume.view import View

log = logging.getLogger(__name__)

_CACHED_BLOCKS = 256
_KEPT_PROBLEMS = 100
_RECORD_BYTES = 1024
"""What the records of one changed inode may take."""
_LAST_EPOCH = 1 << 63
"""Never reached by counting."""
MAIN = "main"


class Volume:
    """One workspace's filesystem, open for writing.

    main: the view of the branch `main`. visits: checkpoints that somebody looks into.
    problems: what `status` reports: damage, losses, changes from outside; newest last.
    orphans: inodes without a name that the store still has blocks of.
    audit: what processes did since the last group.
    """

    def __init__(self, store: Store, base: Base | None) -> None:
        self.store = store
        self.base = base
        self.writer = Writer(store)
        self.reader = Reader(store)
        self._mapped = MappedBlocks(store)
        self.problems: deque[dict[str, str]] = deque(maxlen=_KEPT_PROBLEMS)
        self.orphans: set[int] = set()
        self.importer = Importer(self)
        self.git_elsewhere = Elsewhere()
        self.audit = Audit(self)
        self.group_size = 0
        self._next_id = self._counter(b"next_id")
        self.next_epoch = self._counter(b"next_epoch")
        self._counters = self._next_id, self.next_epoch
        self._last_operation = keys.unpack_id(self.reader.last_key("operation") or bytes(8))
        self._blocks: OrderedDict[bytes, bytes] = OrderedDict()
        self._waiting: deque[
            tuple[TransactionGroup, list[Inode], dict[Inode, dict[int, Buffer | None]]]
        ] = deque()
        self._in_flight = 0
        self._extra = TransactionGroup(0, Lineage(((0, 0),)))
        self._extra_pinned: list[Inode] = []
        self.branch = self.reader.branch(MAIN)
        if self.branch.head >= _LAST_EPOCH:
            detail = f"its head is epoch {self.branch.head}"
            raise StoreDamagedError(path=str(store.path), detail=detail)
        self.next_epoch = max(self.next_epoch, self.branch.head + 1)  # if the counter is damaged
        self.main = View(self, 0, MAIN, self.reader.lineage(self.branch.head))
        self.open_epoch = self.reader.epoch(self.branch.head)
        self._recount()
        self.external = External(self)
        self.visits = Visits(self)
        self._drop_old_orphans()

    def _counter(self, name: bytes) -> int:
        value = self.reader.get("meta", name)
        if value is None:
            raise StoreDamagedError(path=str(self.store.path), detail=f"no {name.decode()}")
        return keys.unpack_id(value)

    def _recount(self) -> None:
        """Counts of the open epoch after a restart, from its change records."""
        view, snapshot = self.main, self.main.snapshot
        prefix = keys.pack_id(view.head) + b"\1"
        parent = view.lineage.at(self.reader.epoch(view.head).parent)
        before = Snapshot(self.reader, parent)
        for key in self.reader.keys("change", prefix):
            ino = keys.change_parts(key)[1]
            try:
                new, old = snapshot.inode(ino), before.inode(ino)
            except DamagedRecordError as error:
                self.damaged(ino, str(error))
                continue
            if new is None:
                if old is not None:
                    view.deleted.add(ino)
            elif old is None:
                view.created.add(ino)
            elif new.mode >> 12 != 4:
                view.touched.add(ino)

    def _drop_old_orphans(self) -> None:
        """Files that were unlinked while open when the last process ended: gone for good now."""
        for key, value in self.reader.scan("orphan", damaged=self._damaged_orphan):
            content, epoch = keys.unpack_id(value), keys.unpack_id(value[8:])
            self._extra.dropped.append((content, epoch))
            self._extra.delete("orphan", key)

    def _damaged_orphan(self, key: bytes, error: DamagedRecordError) -> None:
        """Nobody knows which blocks those were: they take space until a repair."""
        self.problem("damaged", b"", str(error))

    def take_id(self) -> int:
        """The next inode number or content id."""
        taken = self._next_id
        self._next_id = taken + 1
        return taken

    def take_operation(self, moment: int) -> int:
        """The number of an operation made at `moment`: the time or, when the clock went back, the
        next one; so numbers grow and none is used twice."""
        self._last_operation = max(moment, self._last_operation + 1)
        return self._last_operation

    def problem(self, kind: str, path: bytes, detail: str) -> None:
        """Record something that `status` must show (contract 7)."""
        text = path.decode("utf-8", "surrogateescape")
        row = {"kind": kind, "path": text, "detail": detail}
        if row not in self.problems:
            log.warning("%s: %r: %s", kind, text, detail)
            self.problems.append(row)

    def damaged(self, ino: int, detail: str) -> None:
        """Report damage to what belongs to an inode, by its names as far as they are known."""
        try:
            names = self.main.snapshot.names_of(ino)
        except DamagedRecordError:
            names = []
        for name in names or [b""]:
            self.problem("damaged", name, detail)

    # -- reading the store --------------------------------------------------------------------

    def met_damaged_page(self, error: Exception) -> None:
        """LMDB ends a transaction that meets a damaged page: go on with another one."""
        self.problem("damaged", b"", f"a page of the store: {error}")
        self._renew()

    def read_block(self, digest: bytes, ino: int) -> bytes:
        """A stored block, verified; of the file `ino`, for the report of a damaged one. Raises
        PosixError(EIO) then (contract 5)."""
        data = self._blocks.get(digest)
        if data is not None:
            self._blocks.move_to_end(digest)
            return data
        data = self._blocks[digest] = bytes(self.read_block_once(digest, ino))
        if len(self._blocks) > _CACHED_BLOCKS:
            self._blocks.popitem(last=False)
        return data

    def read_block_once(self, digest: bytes, ino: int) -> bytes | memoryview:
        """The same for who does not want it again: not kept and, when it is stored as it is, not
        copied: valid until the store is looked at anew (`reap`)."""
        data = self._blocks.get(digest)
        if data is not None:
            return data
        try:
            value = self._mapped.get(digest)
            if value is None or codec.delta_reference(value) is not None:
                return read_block(self.reader, digest)
            return codec.open_block(value, digest)
        except DamagedRecordError as error:
            self.damaged(ino, str(error))
            raise PosixError(errno.EIO) from None

    # -- transaction groups -------------------------------------------------------------------

    @property
    def extra(self) -> TransactionGroup:
        """Records that go with the next group whatever its epoch is (imports, history)."""
        return self._extra

    def pin(self, inode: Inode) -> None:
        """Keep an imported inode in memory until the next group is committed."""
        inode.pending += 1
        self._extra_pinned.append(inode)

    @property
    def dirty(self) -> bool:
        """Whether anything waits for a quiesce."""
        return self.main.dirty or not self._extra.empty

    @property
    def settled(self) -> bool:
        """Whether all that was done is committed, and `reap` has seen that."""
        return not self.dirty and not self._waiting

    @property
    def epoch_changed(self) -> bool:
        """Whether the open epoch has changes, committed or not."""
        head = self.main.head
        if self.main.dirty or next(self.reader.scan("change", keys.pack_id(head)), None):
            return True
        waiting = (group for group, _, _ in self._waiting)
        return any(g.epoch == head and (g.puts.get("change") or g.removals) for g in waiting)

    @property
    def uncommitted_bytes(self) -> int:
        """Block bytes that are changed or in flight: what a crash would lose, what memory holds."""
        return self.main.dirty_bytes + self._in_flight

    def quiesce(self) -> TransactionGroup | None:
        """Freeze what changed into a group and submit it; None when nothing waits at all.

        When nothing changed but a group is in flight, that group is returned.
        """
        if not self.dirty:
            self.reap()
            return self._waiting[-1][0] if self._waiting else None
        view = self.main
        group, pinned = self._extra, self._extra_pinned
        group.epoch, group.lineage = view.head, view.lineage
        self._extra = TransactionGroup(0, view.lineage)
        self._extra_pinned = []
        frozen = freeze(view, group, pinned)
        self.audit.freeze(group)
        self._put_counters(group)
        self._waiting.append((group, pinned, frozen))
        self._in_flight += group.size
        reached("group.frozen")
        self.writer.submit(group)
        return group

    def _put_counters(self, group: TransactionGroup) -> None:
        """With the group that used a number; not with the many that used none."""
        counters = self._next_id, self.next_epoch
        if counters != self._counters:
            self._counters = counters
            group.put("meta", b"next_id", keys.pack_id(self._next_id))
            group.put("meta", b"next_epoch", keys.pack_id(self.next_epoch))

    def withdraw(self, group: TransactionGroup) -> bool:
        """Take back a group that could not be committed; False when it was after all."""
        if not self.writer.withdraw(group):
            return False
        self._counters = 0, 0
        self.audit.processes.withdrawn()
        self._waiting = deque(item for item in self._waiting if item[0] is not group)
        self._in_flight -= group.size
        self.branch = self.reader.branch(MAIN)
        self.open_epoch = self.reader.epoch(self.branch.head)
        return True

    def put_branch(self) -> None:
        """Write the branch record with the next group."""
        self._extra.put("branch", MAIN.encode(), records.encode(self.branch))

    def reap(self) -> None:
        """Take back what committed groups pinned, and look at the newest commit from now on."""
        waiting, done = self._waiting, []
        while waiting and waiting[0][0].done:
            done.append(waiting.popleft())
        if not done:
            return
        self._renew()
        if not waiting and not self.main.removed:
            self.main.gone.clear()
        if not waiting and self._extra.empty:
            self.importer.committed()
        inodes = self.main.inodes
        for group, pinned, frozen in done:
            self._in_flight -= group.size
            for inode, blocks in frozen.items():
                inflight = inode.inflight
                if inflight is blocks:
                    inode.inflight = NO_BLOCKS
                else:
                    for number, data in blocks.items():
                        if number in inflight and inflight[number] is data:
                            del inflight[number]
            for inode in pinned:
                inode.pending -= 1
                if not inode.idle or inode.orphan_epoch or self.main.editing:
                    continue
                if inodes.get(inode.ino) is inode:  # else it is another view's (browsing.py)
                    del inodes[inode.ino]

    def look_again(self) -> None:
        """Look at the newest commit, whoever made it: old ones keep pages from being used again."""
        self.reap()
        self._renew()

    def _renew(self) -> None:
        """Read from the newest commit from now on."""
        self._close_reader()
        self.reader = Reader(self.store)
        self.main.refresh()

    def _close_reader(self) -> None:
        self.reader.close()
        self._mapped.release()

    def held_contents(self) -> set[int]:
        """Contents of files without a name that something still holds."""
        return {inode.content for inode in self.main.orphans.values()}

    def sync(self) -> None:
        """Everything is on stable storage (blocks the owner). Raises StoreFullError."""
        while (group := self.quiesce()) is not None:
            self.writer.wait(group)
            self.reap()

    @property
    def full(self) -> bool:
        """Whether the store has no room for anything new."""
        return self.writer.full

    def require_room(self) -> None:
        """Called before something new is made. Raises PosixError: ENOSPC when the store is full,
        EIO when it cannot be written for another reason; it would only pile up in memory."""
        if self.writer.full:
            raise PosixError(errno.ENOSPC)
        if self.writer.failure is not None:
            raise PosixError(errno.EIO)

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes of file data fit into the store, beside what is not committed yet:
        compression and deltas cannot be counted on, and pages and records need more."""
        data = self.main.dirty_bytes + self._in_flight + size
        return self.writer.has_room(data + (data >> 3) + len(self.main.changed) * _RECORD_BYTES)

    def close(self) -> None:
        """Commit and close everything. Raises StoreFullError when the last commit fails.

        It returns when the tick of the clock is over in which it began: what others change in the
        base from then on has later times than what was changed here (external/untouched.py).
        """
        reached("close.begin")
        last = posix.now()
        try:
            self.external.adoption.settle()
            self.quiesce()
        finally:
            try:
                self.writer.close()
                reached("close.committed")
            finally:
                self._close_reader()
                if self.base is not None:
                    self.base.forget()
                self.store.close()
                posix.outlive(last)
                reached("close.done")


def open_volume(path: Path, base: Base | None, progress: Progress = silent) -> Volume:
    """Open the store at `path` for writing. `progress` and errors as of `open_store`."""
    store = open_store(path, writable=True, progress=progress)
    try:
        return Volume(store, base)
    except BaseException:
        store.close()
        raise


def create_volume(path: Path, base: Base | None, root: BaseEntry, start_id: str) -> Volume:
    """Make a store whose epoch 0 is the base directory with the attributes `root`.

    `start_id` is the id of the checkpoint of epoch 0.
    """
    moment = now()
    rows = root_records(root, has_base=base is not None)
    start = records.CheckpointRecord(
        start_id, 0, MAIN, "start", moment, message="before the first mount"
    )
    first = records.EpochRecord(0, 0, MAIN, moment, moment, checkpoint=start_id)
    rows += [
        ("epoch", keys.pack_id(0), records.encode(first)),
        ("epoch", keys.pack_id(1), records.encode(records.EpochRecord(0, 0, MAIN, moment))),
        ("branch", MAIN.encode(), records.encode(records.BranchRecord(MAIN, 1))),
        ("checkpoint", start_id.encode(), records.encode(start)),
        ("meta", b"next_id", keys.pack_id(2)),
        ("meta", b"next_epoch", keys.pack_id(2)),
    ]
    store = create_store(path, rows)
    try:
        return Volume(store, base)
    except BaseException:
        store.close()
        raise
