"""The writer thread, which commits transaction groups (store/group.py).

Groups are committed in the order in which they were submitted; several waiting groups share one
LMDB transaction. Every commit is
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
from dataclasses import dataclass

from cowfs.errors import StoreFullError, StoreUnwritableError
from cowfs.format import codec
from cowfs.store import holes
from cowfs.store.env import LmdbError, Store, Transaction
from cowfs.store.group import GroupWriter, TransactionGroup, superseded
from cowfs.store.ledger import Ledger
from cowfs.store.room import is_full
from cowfs.store.steps import reached

log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
_COMMIT_BYTES = 1 << 16
"""What a commit writes beside blocks, as a rule."""
_COLLECTED = 1024
"""Unused blocks that one transaction deletes: LMDB lists the pages that it freed in one piece, for
which a full disk must have room."""


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
                for group, places in zip(groups, superseded(groups), strict=True):
                    ledger.enter(group.epoch)
                    GroupWriter(self._store, examining, group, ledger, places).run()
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


def now() -> int:
    """Nanoseconds since 1970, the clock of every record."""
    return time.time_ns()
