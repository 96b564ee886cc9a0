"""The FUSE thread: pyfuse3's request loop, and how other threads hand it work.

pyfuse3 waits for each request in trio (a lock, epoll): most of the time of a small request. Its
module-level coroutine `_wait_fuse_readable`, looked up at each request, is replaced by a wait in
poll(2) that also watches an eventfd: by it other threads hand in functions (`Loop.call`,
`Loop.post`). trio runs only when such a function has made a waiting handler ready, and once in
`_EVERY` requests: a worker that blocks in poll(2) keeps all others from running, so none does while
a handler is ready to go on (`_woken`). After a reply the wait stays awake for a moment before it
sleeps, because waking a sleeping CPU costs more than a whole operation (`scripts/bench files` shows
both); it stops doing so when nothing comes. Where the attribute is missing, pyfuse3's own wait is
used.

Threading: `Loop.run` is the body of the FUSE thread, the owner of the volume. `call` and `post` may
be used from any other thread.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pyfuse3
import trio

from cowfs.mount.handshake import Handshake
from cowfs.mount.operations import Operations
from cowfs.mount.upkeep import Parking
from cowfs.store.writer import TransactionGroup
from cowfs.volume.posix import PosixError
from cowfs.volume.volume import Volume

log = logging.getLogger(__name__)

T = TypeVar("T")

_EVERY = 256
_SPIN_NS = 60_000
_MAX_TASKS = 160
_MOST_HELD = 128
"""Files that are held at the same time; each keeps a task waiting."""
_SPARE_TASKS = 16
"""Tasks that neither hold nor park, for everything else."""
_DEFER = 64
"""How many requests may go before a function that was handed in: what the kernel sent earlier
(FORGETs above all) is then mostly served before a restore asks which inodes it still holds."""


class LoopEndedError(RuntimeError):
    """The FUSE thread has ended: the file system was unmounted."""


class Loop:
    """Runs one mount. pyfuse3 allows one per process."""

    def __init__(self, volume: Volume, mountpoint: str, options: set[str]) -> None:
        self.volume = volume
        self.operations = Operations(volume, self)
        self._mountpoint = mountpoint
        self._options = options
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._inbox: deque[Callable[[], None]] = deque()
        self._waiting: dict[TransactionGroup, tuple[trio.Event, int]] = {}
        self._woken = 0
        self._release: trio.Event | None = None
        self._unpark: trio.Event | None = None
        self._corrected: trio.Event | None = None
        self._corrections = 0
        self.held: dict[int, int] = {}
        self._stopping = False
        self._ended = threading.Event()
        volume.writer.set_notify(lambda: self.post(self._after_commit))

    # -- other threads ------------------------------------------------------------------------

    def post(self, fn: Callable[[], None]) -> None:
        """Run `fn` in the FUSE thread soon, between two requests."""
        self._inbox.append(fn)
        os.eventfd_write(self._wake, 1)

    def call(self, fn: Callable[[], T]) -> T:
        """Run `fn` in the FUSE thread and return what it returns or raises."""
        done = threading.Event()
        result: list[Any] = []

        def run() -> None:
            try:
                result.append((True, fn()))
            except BaseException as error:
                result.append((False, error))
            done.set()

        self.post(run)
        while not done.wait(0.5):
            if self._ended.is_set() and not done.is_set():
                raise LoopEndedError("the file system was unmounted")
        good, value = result[0]
        if good:
            return value  # type: ignore[no-any-return]
        raise value

    def stop(self) -> None:
        """End the request loop (the kernel's mount is removed by whoever called)."""

        def end() -> None:
            self._stopping = True

        self.post(end)

    # -- the FUSE thread ----------------------------------------------------------------------

    def mount(self) -> None:
        """Create the kernel's mount. Raises RuntimeError."""
        # pyfuse3 takes any object with the handlers' methods; ours return plain awaitables.
        operations = cast(pyfuse3.Operations, self.operations)
        pyfuse3.init(operations, self._mountpoint, self._options)

    def run(self) -> None:
        """Serve requests until the file system is unmounted or `stop` was called."""
        try:
            trio.run(self._main)
        finally:
            self._ended.set()
            self._drain()

    async def _main(self) -> None:
        if hasattr(pyfuse3, "_wait_fuse_readable"):
            pyfuse3._wait_fuse_readable = self._make_wait(_fuse_fd())
        else:
            log.warning("this pyfuse3 has no _wait_fuse_readable: requests are slower")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._drain_when_idle)
            try:
                await pyfuse3.main(max_tasks=_MAX_TASKS)
            except* ConnectionAbortedError:
                # An end like any other: what a read of /dev/fuse says when the last user of a
                # detached mount goes, now and then instead of ENODEV, or when it was aborted.
                log.info("the kernel ended the connection")
            nursery.cancel_scope.cancel()

    def _drain(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        inbox = self._inbox
        while inbox:
            fn = inbox.popleft()
            try:
                fn()
            except Exception:
                log.exception("a function handed to the FUSE thread failed")

    async def _drain_when_idle(self) -> None:
        """Handed-in functions run also while every worker waits for a commit."""
        while True:
            await trio.lowlevel.wait_readable(self._wake)
            self._drain()

    def _make_wait(self, fuse_fd: int) -> Callable[[], Any]:
        poller = select.poll()
        poller.register(fuse_fd, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        poll, clock, checkpoint = poller.poll, time.perf_counter_ns, trio.lowlevel.checkpoint
        operations = self.operations
        handshake = Handshake(fuse_fd)
        served = deferred = 0
        # With one CPU staying awake would only keep the client from running.
        spin = _SPIN_NS if len(os.sched_getaffinity(0)) > 1 else 0

        async def wait() -> bool:
            nonlocal served, deferred
            served += 1
            if served <= 2:
                if served == 1:
                    handshake.hand_on_request()
                    return True
                handshake.hand_back_reply()
            if not served % _EVERY:
                operations.requests = served
                await checkpoint()
            end = clock() + spin
            timeout: int | None = 0 if spin else None
            while not self._stopping:
                if self._woken:
                    await checkpoint()  # a handler whose commit is done must not starve
                    continue  # what was handed in meanwhile may have been the end
                ready = poll(timeout)
                if not ready:
                    if clock() > end:
                        timeout = None
                    continue
                if any(fd == fuse_fd for fd, _ in ready):
                    deferred += len(ready) - 1
                    if deferred < _DEFER:
                        return True
                deferred = 0
                self._drain()
                await checkpoint()
            return False

        return wait

    # -- commits ------------------------------------------------------------------------------

    async def committed(self, group: TransactionGroup) -> None:
        """Wait for a group. Raises PosixError(ENOSPC or EIO) when it cannot be written now."""
        if group.done:
            return
        event, waiters = self._waiting.get(group, (None, 0))
        if event is None:  # an Event has no truth value
            event = trio.Event()
        self._waiting[group] = event, waiters + 1
        await event.wait()
        self._woken -= 1
        if not group.done:
            raise PosixError(errno.ENOSPC if self.volume.full else errno.EIO)

    # -- holding writers off --------------------------------------------------------------------

    def begin_hold(self, among: set[int] | None) -> list[int]:
        """From now on `hold` waits, and who opens a file to write is parked (upkeep.Parking).

        Returns the inodes (of `among`, None for all) that are open for writing, as many as can be
        held (in the FUSE thread).
        """
        writers = self.operations.writers()
        if among is not None:
            writers = [ino for ino in writers if ino in among]
        writers = writers[:_MOST_HELD]
        self._release, self._unpark = trio.Event(), trio.Event()
        self.held = {}
        self.operations.upkeep.parking = Parking(set(writers), among)
        return writers

    async def hold(self, ino: int, mtime: int) -> None:
        """Answer a holder's request when `end_hold` is called. mtime: what the kernel shows."""
        if self._release is not None:
            self.held[ino] = mtime
            await self._until(self._release)

    async def park(self) -> None:
        """Answer a request that would open a file for writing when `end_parking` is called."""
        event = self._unpark
        if event is None:
            return
        room = _MAX_TASKS - _SPARE_TASKS - len(self.held)
        if event.statistics().tasks_waiting < room:
            await self._until(event)

    async def _until(self, event: trio.Event) -> None:
        await event.wait()
        self._woken -= 1

    @property
    def correcting(self) -> bool:
        """Whether the kernel is being told of something that was changed outside."""
        return self._corrections > 0

    def begin_correction(self) -> None:
        """From now on `corrected` waits (in the FUSE thread)."""
        self._corrections += 1
        if self._corrected is None:
            self._corrected = trio.Event()

    async def corrected(self) -> None:
        """Return when the kernel shows what was adopted."""
        if self._corrected is not None and self._corrections:
            await self._until(self._corrected)

    def end_correction(self) -> None:
        """One is done (in the FUSE thread)."""
        self._corrections -= 1
        if not self._corrections:
            event, self._corrected = self._corrected, None
            self._wake_all(event)

    def end_hold(self) -> None:
        """Let the held requests be answered (in the FUSE thread)."""
        release, self._release = self._release, None
        self._wake_all(release)

    def end_parking(self) -> None:
        """Let the parked requests go on (in the FUSE thread)."""
        self.operations.upkeep.parking = None
        event, self._unpark = self._unpark, None
        self._wake_all(event)

    def _wake_all(self, event: trio.Event | None) -> None:
        if event is not None:
            self._woken += event.statistics().tasks_waiting
            event.set()

    def _after_commit(self) -> None:
        self.volume.reap()
        failed = self.volume.writer.failure is not None
        for group in [g for g in self._waiting if g.done or failed]:
            event, waiters = self._waiting.pop(group)
            self._woken += waiters
            event.set()


def _fuse_fd() -> int:
    """The descriptor of /dev/fuse that pyfuse3 opened last (it has no accessor for it)."""
    found = -1
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == "/dev/fuse":
                found = max(found, int(name))
        except OSError:
            continue
    if found < 0:
        raise RuntimeError("no descriptor of /dev/fuse")
    return found


def unmount_kernel(*, unmount: bool) -> None:
    """Let pyfuse3 clean up; with `unmount` it also removes the kernel's mount."""
    pyfuse3.close(unmount=unmount)
