"""The writer thread and its transaction groups.

A *transaction group* collects what the volume changed (state open), is frozen by
`Volume.quiesce` (quiescing) and committed here (syncing). Groups are committed in the order in
which they were submitted; several waiting groups share one LMDB transaction. Every commit is
flushed to stable storage before it is reported, so what a crash leaves is the state after some
whole prefix of the groups (contract 4).

Threading: `Writer` starts one thread, the only one that ever begins a write transaction: LMDB's
lock belongs to the thread that took it, and a transaction that is committed elsewhere hangs the
next one. `submit`, `wait` and the properties may be used from any thread. A submitted group is
not touched by its maker again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cowfs.errors import DamagedRecordError, StoreFullError, StoreUnwritableError
from cowfs.format import codec, keys, records
from cowfs.store import holes
from cowfs.store.env import Cursor, LmdbError, Store, Transaction
from cowfs.store.ledger import Ledger
from cowfs.store.lineage import Lineage
from cowfs.store.room import is_full
from cowfs.store.steps import reached

log = logging.getLogger(__name__)

_ZEROS = bytes(65536)
_INVERT = (1 << 64) - 1
_RETRY_SECONDS = 1.0
_COMMIT_BYTES = 1 << 16
"""What a commit writes beside blocks, as a rule."""
_COLLECTED = 1024
"""Unused blocks that one transaction deletes: LMDB lists the pages that it freed in one piece, for
which a full disk must have room."""

Data = bytes | bytearray | None


@dataclass(slots=True, eq=False)
class TransactionGroup:
    """What one commit adds to the store.

    puts: versioned and plain records, by table, in the order they were made.
    removals: (table, key without epoch, change key): the thing is gone from this epoch on.
    blocks: (content, block number, bytes or None for a hole, reference content or 0, epoch).
    dropped: (content, epoch): extents of that content written in that epoch or later are garbage,
        but not those of this group's own blocks.
    deletes: (table, key) of unversioned records that go.
    done: it is on stable storage.
    """

    epoch: int
    lineage: Lineage
    puts: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    removals: list[tuple[str, bytes, bytes | None]] = field(default_factory=list)
    blocks: list[tuple[int, int, Data, int, int]] = field(default_factory=list)
    dropped: list[tuple[int, int]] = field(default_factory=list)
    deletes: list[tuple[str, bytes]] = field(default_factory=list)
    size: int = 0
    done: bool = False

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Add one record."""
        rows = self.puts.get(table)
        if rows is None:
            rows = self.puts[table] = []
        rows.append((key, value))

    def delete(self, table: str, key: bytes) -> None:
        """Take an unversioned record out. A later `put` of its key wins, an earlier one not."""
        if rows := self.puts.get(table):
            self.puts[table] = [row for row in rows if row[0] != key]
        self.deletes.append((table, key))

    @property
    def empty(self) -> bool:
        return not (self.puts or self.removals or self.blocks or self.dropped or self.deletes)


class WriterEndedError(Exception):
    """The writer ends: what was to be done between two commits was not done."""


@dataclass(slots=True, eq=False)
class _Job:
    """Something to do in a transaction of its own, between groups."""

    work: Callable[[Transaction], None]
    error: Exception | None = None
    done: bool = False


class Writer:
    """Commits transaction groups in order.

    ledger: for jobs (`run`) only, which are in the writer thread.
    """

    def __init__(self, store: Store, notify: Callable[[], None] = lambda: None) -> None:
        """`notify` is called in the writer thread after every commit and every failure."""
        self._store = store
        self._notify = notify
        self._queue: deque[TransactionGroup] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._busy = False
        self._full = False
        self._attempts = self._failed_attempt = 0
        self._wanted = False
        self._failure: Exception | None = None
        self._job: _Job | None = None
        self._ended = False
        self.ledger = Ledger()
        self.commits = 0
        self._unmeasured = 0
        self._measured = 0.0
        store.keep_reserve()
        self.room = store.room()
        self._thread = threading.Thread(target=self._run, name="cowfs-writer", daemon=True)
        self._thread.start()

    def set_notify(self, notify: Callable[[], None]) -> None:
        """Replace the callback (before the first submit)."""
        self._notify = notify

    def submit(self, group: TransactionGroup) -> None:
        """Queue a group; it belongs to the writer from now on."""
        with self._changed:
            if self._closing:
                raise RuntimeError("the writer is closed")
            self._queue.append(group)
            self._changed.notify_all()

    @property
    def failure(self) -> Exception | None:
        """Why the last attempt to commit failed, None when it succeeded."""
        return self._failure

    @property
    def full(self) -> bool:
        """Whether nothing new may be written, since there is no room for it. What is needed to
        delete, to make a checkpoint or to end may still be committed."""
        return not self.room.left or (self._failure is not None and self._full)

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes that are not committed yet will fit."""
        if self._failure is not None:
            return False
        if size > self.room.left:
            self.measure()
        return size <= self.room.left

    def wait(self, group: TransactionGroup, timeout: float | None = None) -> None:
        """Return when the group is on stable storage; an attempt that failed before is repeated.

        Raises StoreFullError (the group stays queued and is tried again), StoreUnwritableError
        (likewise) or TimeoutError.
        """
        with self._changed:
            begun = self._attempts
            self._wanted = True
            self._changed.notify_all()
            if not self._changed.wait_for(
                lambda: group.done or self._failed_attempt > begun, timeout
            ):
                raise TimeoutError("the store did not finish a commit in time")
            if not group.done:
                raise self._failure_error()

    def withdraw(self, group: TransactionGroup) -> bool:
        """Take a group that failed out of the queue; False when it was committed meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
            if group.done:
                return False
            self._queue.remove(group)
            return True

    def run(self, work: Callable[[Transaction], None]) -> None:
        """Have something small done in the writer thread, in a transaction of its own: between two
        commits, and as soon as the one that is under way is done. It is on stable storage when this
        returns. One at a time; for threads that may wait.

        Raises WriterEndedError, StoreFullError, StoreUnwritableError, and what `work` raises:
        nothing of it was done then.
        """
        job = _Job(work)
        with self._changed:
            self._changed.wait_for(lambda: self._job is None)
            if self._ended:
                raise WriterEndedError
            self._job = job
            self._changed.notify_all()
            self._changed.wait_for(lambda: job.done)
        error = job.error
        if isinstance(error, LmdbError | OSError | MemoryError):
            kind = StoreFullError if self._lacks_room(error) else StoreUnwritableError
            raise kind(path=str(self._store.path), detail=str(error)) from None
        if error is not None:
            raise error

    def _run_job(self, *, ending: bool = False) -> None:
        """Do what `run` asks for, if anything. `ending`: for the last time, without doing it."""
        with self._changed:
            job = self._job
            self._ended = ending
        if job is not None:
            job.error = WriterEndedError() if ending else self._try(lambda: self._work(job))
            if job.error is None:
                self._take_stock()
            with self._changed:
                job.done, self._job = True, None
                self._changed.notify_all()

    def _work(self, job: _Job) -> None:
        with self._store.begin(write=True) as txn:
            job.work(txn)

    def _failure_error(self) -> Exception:
        kind = StoreFullError if self._full else StoreUnwritableError
        return kind(path=str(self._store.path), detail=str(self._failure))

    def close(self) -> None:
        """Commit what is queued and end the thread.

        Raises StoreFullError or StoreUnwritableError when that fails.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._queue:
            raise self._failure_error()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._run_job(ending=True)

    def _serve(self) -> None:
        while True:
            self._run_job()
            with self._changed:
                self._changed.wait_for(
                    lambda: self._queue or self._closing or self.ledger.has_unused or self._job,
                    _RETRY_SECONDS if self.full else None,
                )
                groups = list(self._queue)
                self._busy = bool(groups)
                self._attempts += 1
                self._wanted = False
                closing = self._closing
            if not groups and closing:
                return
            if not groups and self._job is not None:
                continue
            if not groups and not self.ledger.has_unused:
                self._take_stock()  # somebody else may have made room
                continue
            error = self._try(lambda: self._commit(groups))  # noqa: B023
            if error is not None or self._may_be_short(groups):
                self._take_stock()
            if error is None:
                self._succeeded(groups)
            elif not self._failed(groups, error):
                return

    def _succeeded(self, groups: list[TransactionGroup]) -> None:
        with self._changed:
            self._busy = False
            self._failure = None
            for group in groups:
                group.done = True
                self._queue.popleft()
            self.commits += bool(groups)
            self._changed.notify_all()
        self._notify()
        reached("commit.told")

    def _failed(self, groups: list[TransactionGroup], error: Exception) -> bool:
        """Tell who waits, and wait before the next attempt; False when there shall be none."""
        full = self._lacks_room(error)
        if not isinstance(error, (LmdbError, OSError, MemoryError)):
            log.error("a transaction group cannot be written", exc_info=error)
        elif self._failure is None:
            room = f"no room (thought to have {self.room})" if full else "an error"
            log.log(logging.WARNING if full else logging.ERROR, "%s: %s", room, error)
        with self._changed:
            self._busy = False
            self._failure = error
            self._full = full
            self._failed_attempt = self._attempts
            self._changed.notify_all()
            if self._closing:
                return False
            self._notify()
            tried = len(groups)
            self._changed.wait_for(
                lambda: self._closing or self._wanted or len(self._queue) > tried or self._job,
                _RETRY_SECONDS,
            )
        return True

    def _try(self, commit: Callable[[], None]) -> Exception | None:
        """One commit; for lack of room others, with that of free pages, then of the reserve."""
        resorts = iter((self._exchange, self._use_reserve))
        while (error := _attempt(commit)) is not None:
            if "MDB_MAP_FULL" in str(error) or not self._lacks_room(error):
                break
            if not any(more_room() for more_room in resorts):
                break
        return error

    def _exchange(self) -> bool:
        """Give free pages back to the full disk, so that a commit has their room for others."""
        try:
            txn = self._store.begin(write=True)
            try:
                return holes.exchange(self._store, txn)
            finally:
                txn.abort()
        except Exception as error:
            log.info("no free pages are given back: %s", error)
            return False

    def _use_reserve(self) -> bool:
        if not self._store.reserve.give_up():
            return False
        log.warning("the disk of the store is full; its reserve is used")
        return True

    def _lacks_room(self, error: Exception) -> bool:
        if is_full(error):
            return True
        try:
            return self._store.cannot_grow()
        except OSError:
            return False

    def measure(self) -> None:
        """See what room there is now: `room`. For any thread."""
        try:
            self.room = self._store.room()
        except (LmdbError, OSError):
            pass  # the next commit will tell

    def set_quota(self, quota: int) -> None:
        """How many bytes the store may hold from now on; 0 for no limit."""
        self._store.quota = quota
        self.measure()

    def _may_be_short(self, groups: list[TransactionGroup]) -> bool:
        """Whether the room must be seen again: it is a part of what a small commit takes."""
        self._unmeasured += sum(group.size + _COMMIT_BYTES for group in groups)
        if self._unmeasured * 8 > self.room.left or not self._store.reserve.held:
            return True
        return time.monotonic() - self._measured > _RETRY_SECONDS  # others may have filled the disk

    def _take_stock(self) -> None:
        """Have the reserve again when there is enough room for it, and see what is left."""
        try:
            self._store.reserve.take(self._store.free_bytes())
        except OSError:
            pass
        self._unmeasured, self._measured = 0, time.monotonic()
        self.measure()

    def _commit(self, groups: list[TransactionGroup]) -> None:
        reached("commit.begin")
        ledger = self.ledger
        # What a reader sees is kept until it says that it is done. One that was killed never
        # does, and the file would grow with every commit (3 µs).
        self._store.forget_dead_readers()
        ledger.begin()
        try:
            with self._store.begin(write=True) as txn:
                examining = txn.examining()  # damage must not stand in the way of what is new
                for group, superseded in zip(groups, _superseded(groups), strict=True):
                    ledger.enter(group.epoch)
                    _Apply(self._store, examining, group, ledger, superseded).run()
                    reached("commit.group")
                self._collect(txn)
                reached("commit.before-sync")
        except BaseException:
            ledger.roll_back()
            raise
        reached("commit.after-sync")

    def _collect(self, txn: Transaction) -> None:
        """Delete blocks that nothing refers to any more."""
        blocks, ledger = self._store.tables["block"], self.ledger
        left = _COLLECTED
        while left and (unused := ledger.unused(left)):
            left -= len(unused)
            for digest in unused:
                value = txn.get(digest, db=blocks)
                ledger.deleted(digest)
                if value is not None:
                    txn.delete(digest, db=blocks)
                    reference = codec.delta_reference(value)
                    if reference is not None:
                        ledger.let_go(reference)


def _attempt(commit: Callable[[], None]) -> Exception | None:
    """Why it failed."""
    try:
        commit()
    except Exception as error:
        return error
    return None


def _superseded(groups: list[TransactionGroup]) -> list[set[int]]:
    """For each group, the blocks (by place in its list) that a later one of the same transaction
    overwrites or drops: they need not be written, so that a file which is too big can be deleted.
    """
    if len(groups) == 1:
        return [set()]
    written: set[tuple[int, int, int]] = set()
    dropped: dict[int, int] = {}
    found = []
    for group in reversed(groups):
        blocks = [(content, number, epoch) for content, number, _, _, epoch in group.blocks]
        found.append(
            {
                place
                for place, block in enumerate(blocks)
                if block in written or dropped.get(block[0], block[2] + 1) <= block[2]
            }
        )
        written.update(blocks)
        for content, epoch in group.dropped:
            dropped[content] = min(epoch, dropped.get(content, epoch))
    return found[::-1]


class _Apply:
    """Writes one group into an open write transaction."""

    def __init__(
        self,
        store: Store,
        txn: Transaction,
        group: TransactionGroup,
        ledger: Ledger,
        superseded: set[int],
    ) -> None:
        """`superseded`: places in `group.blocks` of what need not be written."""
        self.tables = store.tables
        self.segments = store.segments
        self.txn = txn
        self.group = group
        self.ledger = ledger
        self.superseded = superseded
        self.suffix = keys.inverted(group.epoch)

    def run(self) -> None:
        group = self.group
        if group.blocks:
            self._put_blocks()
        if group.dropped:
            # A file that a restore gave back its name may have been written since.
            own = {keys.extent_key(block[0], block[1], block[4]) for block in group.blocks}
            for content, epoch in group.dropped:
                self._drop(content, epoch, own)
        for table, key in group.deletes:
            self.txn.delete(key, db=self.tables[table])
        for key, value in group.puts.get("extent", ()):
            self._refer(key, value)
        for table, rows in group.puts.items():
            with self.txn.cursor(db=self.tables[table]) as cursor:
                cursor.putmulti(rows)
        if group.removals:
            cursors = {
                table: self.txn.cursor(db=self.tables[table])
                for table in {table for table, _, _ in group.removals}
            }
            for table, prefix, change in group.removals:
                self._remove(table, cursors[table], prefix, change)
            for cursor in cursors.values():
                cursor.close()

    def _remove(self, table: str, cursor: Cursor, prefix: bytes, change: bytes | None) -> None:
        """A thing is gone: leave a whiteout only where an ancestor epoch still shows it."""
        key = prefix + self.suffix
        if self._older(cursor, prefix):
            self.txn.put(key, records.WHITEOUT, db=self.tables[table])
            if change is not None:
                self.txn.put(change, b"", db=self.tables["change"])
            return
        self.txn.delete(key, db=self.tables[table])
        if change is not None:
            self.txn.delete(change, db=self.tables["change"])

    def _older(self, cursor: Cursor, prefix: bytes) -> bool:
        """Whether the thing was there before this epoch; if that is damaged, it was."""
        if not cursor.set_range(prefix + keys.inverted(self.group.epoch - 1)):
            return False
        visible, size = self.group.lineage.visible, len(prefix) + 8
        while True:
            key = cursor.key()
            if len(key) != size or not key.startswith(prefix):
                return False
            if visible(_INVERT - int.from_bytes(key[-8:], "big")):
                return cursor.stored() != cursor.seal(key, records.WHITEOUT)
            if not cursor.next():
                return False

    def _drop(self, content: int, epoch: int, own: set[bytes]) -> None:
        prefix = keys.pack_id(content)
        with self.txn.cursor(db=self.tables["extent"]) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                key = cursor.key()
                if keys.epoch_of(key) >= epoch and key not in own:
                    self.ledger.let_go(cursor.value())
                    found = cursor.delete()
                else:
                    found = cursor.next()

    def _refer(self, key: bytes, value: bytes) -> None:
        """Count the reference that an extent makes, and the one that it replaces."""
        old = self.txn.get(key, db=self.tables["extent"])
        self.ledger.hold(value)
        if old is not None:
            self.ledger.let_go(old)

    def _put_blocks(self) -> None:
        txn, blocks, extents = self.txn, self.tables["block"], self.tables["extent"]
        with txn.cursor(db=extents) as cursor:
            for place, (content, number, data, reference, epoch) in enumerate(self.group.blocks):
                if place in self.superseded:
                    continue
                key = keys.extent_key(content, number, epoch)
                if data is None or data == _ZEROS[: len(data)]:
                    self._refer(key, records.WHITEOUT)
                    txn.put(key, records.WHITEOUT, db=extents)
                    continue
                digest = codec.block_hash(data)
                stored = txn.get(digest, db=blocks)
                if stored is not None and not self._sound(digest, stored):
                    # Others may be deltas to it, so it stands alone.
                    txn.put(digest, codec.encode_block(data), db=blocks)
                elif stored is not None:
                    self._note_needed(stored)
                else:
                    below = self._reference(cursor, content, number, reference)
                    value = codec.encode(data, *below) if below else codec.encode_block(data)
                    txn.put(digest, value, db=blocks)
                    self.ledger.born(digest)
                    if (needed := codec.delta_reference(value)) is not None:
                        self.ledger.hold(needed)
                        self._note_needed(value)
                self._refer(key, digest)
                txn.put(key, digest, db=extents)

    def _note_needed(self, value: bytes) -> None:
        """Something is going to rely on a block, and so on what that needs: its reference, and the
        segment that one of the two may be a part of."""
        needed = codec.delta_reference(value)
        if needed is None or not self.ledger.watching:
            return
        self.ledger.note(needed)
        below = self.txn.get(needed, db=self.tables["block"]) or b""
        if (segment := codec.delta_reference(below)) is not None:
            self.ledger.note(segment)

    def _sound(self, digest: bytes, value: bytes) -> bool:
        """Whether a block that is there already can be read. If not, the same bytes that are
        written now take its place: they must not be lost with it (contract 4)."""
        try:
            self.segments.decode(self.txn, self.tables["block"], value, digest)
        except DamagedRecordError:
            return False
        return True

    def _reference(
        self, cursor: Cursor, content: int, number: int, reference: int
    ) -> tuple[bytes, bytes] | None:
        """(raw bytes, hash) of the previous version of a block, or of what that refers to."""
        digest = self._previous(cursor, content, number)
        if not digest and reference:
            digest = self._previous(cursor, reference, number)
        if not digest:
            return None
        blocks = self.tables["block"]
        value = self.txn.get(digest, db=blocks)
        further = codec.delta_reference(value) if value is not None else None
        if value is not None and further is not None and value[0] != codec.PART:
            digest, value = further, self.txn.get(further, db=blocks)
        if value is None:
            return None
        try:
            return self.segments.decode(self.txn, blocks, value, digest), digest
        except DamagedRecordError:
            return None

    def _previous(self, cursor: Cursor, content: int, number: int) -> bytes | None:
        """Hash of the version of a block that this group replaces (in this epoch or before)."""
        prefix = keys.extent_prefix(content, number)
        if not cursor.set_range(prefix + self.suffix):
            return None
        key = cursor.key()
        if key.startswith(prefix) and self.group.lineage.visible(keys.epoch_of(key)):
            value = cursor.value()
            return value if len(value) == codec.HASH_SIZE else None
        return None


def now() -> int:
    """Nanoseconds since 1970, the clock of every record."""
    return time.time_ns()
