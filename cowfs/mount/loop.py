"""The FUSE thread: the request loop, and how other threads hand it work.

A request is read, its handler called, the answer written: that is all for nearly all of them. A
handler that has to wait returns a coroutine, which goes on when the `Event` that it awaits is set;
the loop serves others meanwhile. Other threads hand in functions (`Loop.call`, `Loop.post`), of
which an eventfd tells. After a reply the loop stays awake for a moment before it sleeps in poll(2),
because waking a sleeping CPU costs more than a whole operation (`scripts/bench files` shows both).

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
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

import pyfuse3

from cowfs.mount import wire
from cowfs.mount.device import Device
from cowfs.mount.nodes import GHOSTS_INO, INO_MASK
from cowfs.mount.operations import Operations
from cowfs.mount.requests import HANDLERS, SILENT, Answer, Handlers
from cowfs.mount.upkeep import Parking
from cowfs.store.group import TransactionGroup
from cowfs.volume.posix import PosixError
from cowfs.volume.volume import Volume

log = logging.getLogger(__name__)

T = TypeVar("T")
_Waiting = Coroutine[Any, Any, Any]

_UNMOUNTED = "the file system was unmounted"
_SPIN_NS = 60_000
_MOST_HELD = 128
"""Files that are held at the same time; each keeps a thread waiting."""
_DEFER = 64
"""How many requests may go before a function that was handed in: what the kernel sent earlier
(FORGETs above all) is then mostly served before a restore asks which inodes it still holds."""


class LoopEndedError(RuntimeError):
    """The FUSE thread has ended: the file system was unmounted."""


class Event:
    """Something that answers wait for. Owned by the FUSE thread."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, int, _Waiting]] = []
        """Requests (opcode, unique) and what goes on when it happens."""

    def __await__(self) -> Generator[Event, None, None]:
        yield self


class Loop:
    """Runs one mount. pyfuse3 allows one per process."""

    def __init__(self, volume: Volume, mountpoint: str, options: set[str]) -> None:
        self.volume = volume
        self.device = Device()
        self.operations = Operations(volume, self)
        self._mountpoint = mountpoint
        self._options = options
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._inbox: deque[Callable[[], None]] = deque()
        self._ready: deque[tuple[int, int, _Waiting]] = deque()
        self._commits: dict[TransactionGroup, Event] = {}
        self._release: Event | None = None
        self._unpark: Event | None = None
        self._corrected: Event | None = None
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
        if self._ended.is_set():
            raise LoopEndedError(_UNMOUNTED)
        done = threading.Event()
        result: list[Any] = []

        def run() -> None:
            try:
                result.append((True, fn()))
            except BaseException as error:
                result.append((False, error))
            done.set()

        self.post(run)
        while not done.wait(0.5):  # else it came when the last ones had just been run
            if self._ended.is_set() and not done.is_set():
                raise LoopEndedError(_UNMOUNTED)
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
        pyfuse3.init(pyfuse3.Operations(), self._mountpoint, self._options)
        self.device.fd = _fuse_fd()

    def run(self) -> None:
        """Serve requests until the file system is unmounted or `stop` was called."""
        try:
            if self.device.handshake():
                self._serve()
        finally:
            self._ended.set()
            self._drain()

    def _serve(self) -> None:
        device, operations, inbox = self.device, self.operations, self._inbox
        browsing: Handlers = operations.browsing
        request, receive, reply = device.request, device.receive, device.reply
        unpack, find, clock = wire.REQUEST.unpack_from, HANDLERS.get, time.perf_counter_ns
        poller = select.poll()
        poller.register(device.fd, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        # With one CPU staying awake would only keep the client from running.
        spin = _SPIN_NS if len(os.sched_getaffinity(0)) > 1 else 0
        served = deferred = awake_until = 0
        while not self._stopping:
            size = receive()
            if size > 0:
                served += 1
                _, opcode, unique, node, _, _, pid = unpack(request)
                to: Handlers = browsing if INO_MASK < node < GHOSTS_INO else operations
                handler = find(opcode)
                try:
                    answer = handler(to, node, pid, request, size) if handler else errno.ENOSYS
                except Exception as error:
                    answer = operations.failure(opcode, error)
                if type(answer) is bytes:
                    reply(unique, answer)
                else:
                    self._answer(opcode, unique, answer)
                operations.requests = served
                if inbox:
                    deferred += 1
                    if deferred >= _DEFER:
                        deferred = 0
                        self._drain()
                if spin:
                    awake_until = clock() + spin
                elif not inbox:
                    self._sleep(poller)
            elif size < 0:
                log.info("the kernel ended the connection")
                break
            elif inbox:
                deferred = 0
                self._drain()
            elif not spin or clock() > awake_until:
                self._sleep(poller)

    def _sleep(self, poller: select.poll) -> None:
        """Until there is a request, or something was handed in."""
        for fd, _ in poller.poll():
            if fd == self._wake:
                os.eventfd_read(fd)

    def _answer(self, opcode: int, unique: int, answer: Answer) -> None:
        if isinstance(answer, bytes):
            self.device.reply(unique, answer)
        elif isinstance(answer, list):
            self.device.reply_pieces(unique, answer)
        elif answer is None:
            self.device.reply(unique, b"")
        elif isinstance(answer, int):
            self.device.fail(unique, answer)
        elif answer is not SILENT:
            assert isinstance(answer, Coroutine)
            self._go_on(opcode, unique, answer)

    def _go_on(self, opcode: int, unique: int, waiting: _Waiting) -> None:
        """Run a coroutine until it is done or awaits an event."""
        try:
            event: Event = waiting.send(None)
        except StopIteration as done:
            self._answer(opcode, unique, done.value)
        except Exception as error:
            self._answer(opcode, unique, self.operations.failure(opcode, error))
        else:
            event.waiting.append((opcode, unique, waiting))

    def _set(self, event: Event | None) -> None:
        """What waits for an event goes on, after the function that is running now."""
        if event is not None:
            self._ready += event.waiting
            event.waiting = []

    def _drain(self) -> None:
        """Run what was handed in, and after each what it has made ready."""
        inbox, ready = self._inbox, self._ready
        while inbox:
            fn = inbox.popleft()
            try:
                fn()
            except Exception:
                log.exception("a function handed to the FUSE thread failed")
            while ready:
                self._go_on(*ready.popleft())

    # -- commits ------------------------------------------------------------------------------

    async def committed(self, group: TransactionGroup) -> None:
        """Wait for a group. Raises PosixError(ENOSPC or EIO) when it cannot be written now."""
        if group.done:
            return
        event = self._commits.get(group)
        if event is None:
            event = self._commits[group] = Event()
        await event
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
        self._release, self._unpark = Event(), Event()
        self.held = {}
        self.operations.upkeep.parking = Parking(set(writers), among)
        return writers

    async def hold(self, ino: int, mtime: int) -> None:
        """Answer a holder's request when `end_hold` is called. mtime: what the kernel shows."""
        if self._release is not None:
            self.held[ino] = mtime
            await self._release

    async def park(self) -> None:
        """Answer a request that would open a file for writing when `end_parking` is called."""
        if self._unpark is not None:
            await self._unpark

    @property
    def correcting(self) -> bool:
        """Whether the kernel is being told of something that was changed outside."""
        return self._corrections > 0

    def begin_correction(self) -> None:
        """From now on `corrected` waits (in the FUSE thread)."""
        self._corrections += 1
        if self._corrected is None:
            self._corrected = Event()

    async def corrected(self) -> None:
        """Return when the kernel shows what was adopted."""
        if self._corrected is not None and self._corrections:
            await self._corrected

    def end_correction(self) -> None:
        """One is done (in the FUSE thread)."""
        self._corrections -= 1
        if not self._corrections:
            event, self._corrected = self._corrected, None
            self._set(event)

    @property
    def gets_pages(self) -> bool:
        """Whether `pages_sent` can be relied on."""
        return self.device.waits_for_writeback

    async def pages_sent(self, ino: int, start: int, stop: int | None) -> None:
        """Return when the kernel has sent what it had of a range (`Device.invalidate_range`). A
        thread asks for that: it waits for requests that are answered here. Raises OSError."""
        event, failed = Event(), list[Exception]()

        def ask() -> None:
            try:
                self.device.invalidate_range(ino, start, stop)
            except Exception as error:
                failed.append(error)
            self.post(lambda: self._set(event))

        threading.Thread(target=ask, name="cowfs-pages", daemon=True).start()
        await event
        if failed:
            raise failed[0]

    def end_hold(self) -> None:
        """Let the held requests be answered (in the FUSE thread)."""
        release, self._release = self._release, None
        self._set(release)

    def end_parking(self) -> None:
        """Let the parked requests go on (in the FUSE thread)."""
        self.operations.upkeep.parking = None
        event, self._unpark = self._unpark, None
        self._set(event)

    def _after_commit(self) -> None:
        self.volume.reap()
        failed = self.volume.writer.failure is not None
        for group in [g for g in self._commits if g.done or failed]:
            self._set(self._commits.pop(group))


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
