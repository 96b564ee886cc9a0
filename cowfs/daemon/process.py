"""The daemon process: mounts a workspace, serves it, and leaves it in order.

Threads: FUSE (owner of the volume), writer, control, timer, walker, sealer, autosaver, collector,
evictor, signals; the main thread waits for the end. Whatever ends it (the `unmount` method,
umount(8), a signal), everything is committed first.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import logging
import logging.handlers
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cowfs.daemon.autosaver import Autosaver
from cowfs.daemon.collector import Collector
from cowfs.daemon.control import ControlServer, user_name
from cowfs.daemon.engine import MountEngine
from cowfs.daemon.holders import describe, holders
from cowfs.daemon.memory import give_back
from cowfs.daemon.methods import Methods
from cowfs.daemon.options import mount_options
from cowfs.daemon.refusals import explained
from cowfs.daemon.sealer import Sealer
from cowfs.daemon.standby import Standby
from cowfs.daemon.surroundings import pass_nothing_on, settle
from cowfs.daemon.walker import Walker
from cowfs.errors import (
    BusyError,
    CowfsError,
    FuseUnavailableError,
    InternalError,
    MountFailedError,
    StoreFullError,
    StoreUnwritableError,
    UnmountFailedError,
    as_cowfs_error,
)
from cowfs.mount.kernel import Kernel
from cowfs.mount.loop import Loop, LoopEndedError, unmount_kernel
from cowfs.mounts import fuse_fault, is_dead, unmount
from cowfs.service.apply import apply, unfinished
from cowfs.service.engine import LocalEngine, commit
from cowfs.service.sessions.placing import finish_all
from cowfs.service.sessions.recording import Recorder
from cowfs.service.sessions.registry import Registry
from cowfs.service.sessions.witness import Witness
from cowfs.service.workspace import Description, open_base, open_for_writing, write_description
from cowfs.store.rewriting import Progress, silent
from cowfs.store.steps import reached
from cowfs.volume.history import Author
from cowfs.volume.volume import Volume

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.25
"""How long a change may wait before its group is closed (contract 4)."""
_IDLE_SECONDS = 1.0
_IDLE_TICKS = 8
"""Quiet ticks after which they come every `_IDLE_SECONDS`: waking a CPU four times a second is all
that an idle daemon would cost."""
_FLUSH_TICKS = 20
"""Groups between two times at which the kernel is asked for what open files hold back: it keeps
written pages for half a minute, which is more than the few seconds of contract 4."""
_SHRINK_AT_ONCE = 1000
"""Inodes that are taken out of memory between two requests, in about a millisecond."""
_ANSWER_SECONDS = 10.0
_LOG_BYTES = 1 << 20
_BUSY_REQUESTS = 20
_SWITCH_SECONDS = 0.0005
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_CRASH_SECONDS = 60.0
_MOST_CRASHES = 5
"""So often is a killed daemon started again within `_CRASH_SECONDS`."""


@dataclass(frozen=True, slots=True)
class Config:
    """What to mount. Absolute paths. `watch_limit`: names that a restore announces to watchers.
    `quota`: bytes that the store may hold, 0 for no limit, None to leave it as it is.
    `seal_rate`: bytes a second of background sealing, 0 for none. `restart`: start again when
    killed; `crashes`: when that was last, s since 1970. `cache_inodes`: how many inodes are kept in
    memory, at some 600 bytes each. `automatic`: make checkpoints by itself, as the configuration
    says."""

    base: str
    mountpoint: str
    store: str
    allow_other: bool = False
    watch_limit: int = 2000
    quota: int | None = None
    seal_rate: float = 0.0
    restart: bool = False
    crashes: tuple[float, ...] = ()
    cache_inodes: int = 65536
    automatic: bool = True

    @property
    def in_place(self) -> bool:
        return self.base == self.mountpoint


class Daemon:
    """One mounted workspace.

    operation: held by whatever ends an epoch, touches the base or unmounts; one at a time.
    busy: set while requests come. stop: set when the mount is gone.
    """

    def __init__(self, config: Config, progress: Progress) -> None:
        """Open the store, with `progress` if it must be upgraded first, and mount. Raises
        CowfsError; nothing is mounted then."""
        self.config = config
        check_fuse()
        store = Path(config.store)
        self.base_fd = open_base(config.base)
        self.volume = open_for_writing(store, config.base, self.base_fd, progress)
        try:
            finish_apply(self.volume)
            finish_all(self.volume)
            if config.quota is not None:
                self.volume.writer.set_quota(config.quota)
            quota = self.volume.store.quota
            write_description(store, Description(config.base, config.mountpoint, quota))
            options = mount_options(
                config.store,
                base_fd=self.base_fd,
                mountpoint=config.mountpoint,
                allow_other=config.allow_other,
            )
            self.loop = Loop(self.volume, config.mountpoint, options)
            pass_nothing_on()
            with explained():
                self.loop.mount()
        except BaseException:
            self.volume.close()
            os.close(self.base_fd)
            raise
        self.operation = threading.RLock()
        self._pid_file = store / "daemon.pid"
        try:
            self.kernel = Kernel(self.loop, config.mountpoint, config.watch_limit)
            self.engine = MountEngine(self.volume, self.loop, self.kernel)
            self.autosaver = Autosaver(
                self.engine,
                self.loop.operations,
                self.operation,
                store,
                Author(os.geteuid(), user_name(os.geteuid()), os.getpid(), "cowfs"),
                enabled=config.automatic,
            )
            registry = Registry(self.engine)
            self.recorder = Recorder(self.engine, self.operation, registry)
            self.witness = Witness(self.engine, self.operation, registry)
            self.autosaver.context = self.witness.automatic
            self._server = ControlServer(store, Methods(self).table())
        except BaseException:
            unmount_kernel(unmount=True)
            self.volume.close()
            os.close(self.base_fd)
            raise
        self._note_pid()
        self._apply_last: Author | None = None
        self.stop = threading.Event()
        self.busy = threading.Event()
        self._walker = Walker(self.engine, self.busy)
        self._sealer = (
            Sealer(self.engine, config.seal_rate, self.busy, self.stop)
            if config.seal_rate
            else None
        )
        self.collector = Collector(
            self.engine, self.operation, store, self.busy, self.stop, self.recorder.registry
        )
        self._fuse = threading.Thread(target=self._run_fuse, name="cowfs-fuse")
        self._timer = threading.Thread(target=self._tick, name="cowfs-timer", daemon=True)

    def _note_pid(self) -> None:
        """For messages of other commands: nothing depends on it, so a full disk is no obstacle."""
        try:
            fresh = self._pid_file.with_suffix(".new")  # nobody reads half of it
            fresh.write_text(f"{os.getpid()}\n", encoding="ascii")
            fresh.replace(self._pid_file)
        except OSError as error:
            log.warning("the pid is not noted: %s", error)

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until unmounted; `ready` is called when the mount answers."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        self._fuse.start()
        self._timer.start()
        threading.Thread(target=self._wait_for_signal, name="cowfs-signals", daemon=True).start()
        self._server.start()
        self._walker.start()
        with contextlib.suppress(LoopEndedError):
            self.recorder.attribution.begin()
        self.autosaver.start()
        self.collector.start()
        if self._sealer is not None:
            self._sealer.start()
        ready()
        self._fuse.join()
        self.stop.set()
        self._server.close()
        self._server.wait_idle(_ANSWER_SECONDS)
        self._walker.stop()
        self.autosaver.stop()
        self.collector.join()
        if self._sealer is not None:
            self._sealer.join()
        self._timer.join()
        self.kernel.close()
        unmount_kernel(unmount=False)
        if self._apply_last is not None:
            # What came between the apply and the end of the mount; nearly always nothing.
            apply(LocalEngine(self.volume), self._apply_last, lambda **_: None)
        try:
            self.volume.close()
        finally:
            with contextlib.suppress(OSError):
                self._pid_file.unlink(missing_ok=True)
            os.close(self.base_fd)

    def _run_fuse(self) -> None:
        try:
            self.loop.run()
        except Exception:
            log.exception("the FUSE thread failed")

    def _tick(self) -> None:
        served = ticks = quiet = 0
        while not self.stop.wait(_TICK_SECONDS if quiet < _IDLE_TICKS else _IDLE_SECONDS):
            requests = self.loop.operations.requests
            if requests - served > _BUSY_REQUESTS:
                self.busy.set()
            else:
                self.busy.clear()
            dirty = self.volume.dirty
            quiet = (
                0 if dirty or requests != served or self.loop.operations.writers() else quiet + 1
            )
            served = requests
            if quiet == _IDLE_TICKS:
                give_back()
            ticks += 1
            if len(self.volume.main.inodes) > self.config.cache_inodes:
                self._shrink()
            if ticks % _FLUSH_TICKS == 0 and self.loop.operations.writers():
                self._flush_open_files()
            external = self.volume.importer.complete and self.volume.external.adoption.adopting
            if dirty or external:
                self.loop.post(self._quiesce)
            self.autosaver.tick(time.monotonic())

    def _shrink(self) -> None:
        """Keep no more inodes in memory than wanted; an operation may need them, so not then."""
        if not self.operation.acquire(blocking=False):
            return
        try:
            view, most = self.volume.main, self.config.cache_inodes
            for _ in range(len(view.inodes) // _SHRINK_AT_ONCE + 1):
                if not self.loop.call(lambda: view.shrink(most, _SHRINK_AT_ONCE)):
                    break
        except LoopEndedError:
            pass
        finally:
            self.operation.release()

    def _flush_open_files(self) -> None:
        """Bring in what the kernel holds back; not while an operation, which does so itself."""
        if not self.operation.acquire(blocking=False):
            return
        try:
            self.kernel.flush()
        except (OSError, CowfsError, LoopEndedError) as error:
            log.info("the kernel's dirty pages were not flushed: %s", error)
        finally:
            self.operation.release()

    def _quiesce(self) -> None:
        if self.volume.importer.complete:
            self.volume.external.adoption.settle()  # all that was changed outside has been found
        self.volume.quiesce()

    def _wait_for_signal(self) -> None:
        while True:
            log.info("signal %d: unmounting", signal.sigwait(_SIGNALS))
            self._leave()

    def _leave(self) -> None:
        # What is under way calls through the mount, as `_end_callers` says; not for ever, though.
        alone = self.operation.acquire(timeout=_ANSWER_SECONDS)
        try:
            self.unmount(force=True, apply_head=False, author=Author(), progress=lambda **_: None)
        except (CowfsError, OSError, LoopEndedError) as error:
            log.error("unmounting after a signal: %s", error)
            try:
                unmount(self.kernel.mountpoint(), lazy=True)
            except OSError as second:
                log.error("the mount stays: %s", second)
            self.loop.stop()
        finally:
            if alone:
                self.operation.release()

    def unmount(
        self, *, force: bool, apply_head: bool, author: Author, progress: Callable[..., None]
    ) -> dict[str, Any]:
        """Unmount, writing the head to the base first if asked to; the process ends soon after.

        With `force` also when the store cannot take the last changes (`unstored` in the result).
        Raises BusyError, StoreFullError, StoreUnwritableError, ApplyConflictError,
        UnmountFailedError: the mount then goes on.
        """
        mountpoint = self.kernel.mountpoint()
        held = holders(mountpoint, author.pid)
        if held and not force:
            raise BusyError(path=mountpoint, holders=describe(held), pids=[h.pid for h in held])
        reached("unmount.begin")
        unstored = self._store_all(give_up=force)
        apply_head = apply_head and not unstored
        reached("unmount.committed")
        applied: dict[str, Any] | None = None
        if apply_head:
            applied = apply(self.engine, author, progress).to_json()
            reached("unmount.applied")
        try:
            unmount(mountpoint, lazy=force)
        except OSError as error:
            if error.errno == errno.EBUSY:
                names = describe(holders(mountpoint)) or "a process that cannot be seen"
                raise BusyError(path=mountpoint, holders=names, pids=[]) from None
            raise UnmountFailedError(path=mountpoint, detail=str(error)) from None
        reached("unmount.done")
        self._apply_last = author if apply_head else None
        if force:
            self._end_callers()
            self.loop.stop()
        return {
            "mountpoint": mountpoint,
            "applied": applied,
            "unstored": unstored,
            "pid": os.getpid(),
        }

    def _end_callers(self) -> None:
        """End the threads that call through the mount by themselves, while it is served: a call
        that nobody answers has no end, and nor has who waits for its thread."""
        self.stop.set()
        self._timer.join()
        self.kernel.close()

    def _store_all(self, *, give_up: bool) -> str:
        """Bring everything to stable storage; with `give_up` returns why that did not succeed.

        Raises StoreFullError, StoreUnwritableError.
        """
        unstored = ""
        for step in (self.kernel.flush, lambda: commit(self.engine)):
            try:
                step()
            except (StoreFullError, StoreUnwritableError) as error:
                if not give_up:
                    raise
                log.warning("unmounting without the last changes: %s", error)
                unstored = str(error)
        return unstored


def finish_apply(volume: Volume) -> None:
    """An apply that a crash interrupted is finished before anything else (contract 6)."""
    engine = LocalEngine(volume)
    if unfinished(engine) is not None:
        log.info("finishing an interrupted apply")
        try:
            done = apply(engine, Author(), lambda **_: None)
        except CowfsError as error:
            # The workspace is whole all the same; the next apply tries again.
            volume.problem("apply", b"", f"an interrupted apply is not finished: {error}")
        else:
            for row in done.problems:
                volume.problem("apply", os.fsencode(row["path"]), row["detail"])


def _start_again(config: Config) -> None:
    """Become the next daemon of a workspace whose daemon was killed (daemon/standby.py)."""
    moment = time.time()
    recent = [then for then in config.crashes if moment - _CRASH_SECONDS < then <= moment]
    if len(recent) >= _MOST_CRASHES:
        return
    while is_dead(config.mountpoint):
        unmount(config.mountpoint, lazy=True)
    again = json.dumps(asdict(replace(config, crashes=(*recent, moment))))
    nobody = os.open(os.devnull, os.O_WRONLY)
    os.set_inheritable(nobody, True)
    command = [sys.executable, "-P", "-m", "cowfs.daemon", again, str(nobody)]
    os.execv(sys.executable, command)


def check_fuse() -> None:
    """Raises FuseUnavailableError with what to do, before anything was touched."""
    if fault := fuse_fault():
        detail, advice = fault
        raise FuseUnavailableError(detail=detail, advice=advice)


def set_up_logging(store: Path, *, foreground: bool) -> None:
    """A rotating log in the store; on the terminal as well in the foreground. Raises OSError."""
    handler = logging.handlers.RotatingFileHandler(
        store / "daemon.log",
        maxBytes=_LOG_BYTES,
        backupCount=3,
        encoding="utf-8",
        errors="backslashreplace",
    )
    # The log's disk may be full or gone: that is no reason for more messages.
    logging.raiseExceptions = False
    form = "%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"
    handlers: list[logging.Handler] = [handler]
    if foreground:
        handlers.append(logging.StreamHandler())
    logging.basicConfig(level=logging.INFO, format=form, handlers=handlers)


def serve(
    config: Config,
    tell: Callable[[dict[str, Any]], None],
    *,
    foreground: bool,
    progress: Progress = silent,
) -> int:
    """Mount and serve; tells once how mounting went, and before that the progress of what takes
    long. Returns an exit code.

    For the main thread of a process that has no other threads yet.
    """
    store = Path(config.store)
    standby: Standby | None = None
    # Blocked in all threads, and waited for by one: Python would run a handler in the main thread,
    # which does not notice a signal that comes just before it begins to wait for the end.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    settle()
    try:
        store.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(store, 0o700)
        standby = Standby((lambda: _start_again(config)) if config.restart else None)
        set_up_logging(store, foreground=foreground)
        daemon = Daemon(config, progress)
    except (CowfsError, OSError, RuntimeError, MemoryError) as error:
        if standby is not None:
            standby.dismiss()
        known = as_cowfs_error(error)
        if isinstance(known, InternalError):
            known = MountFailedError(
                path=config.base, detail=str(error), log=str(store / "daemon.log")
            )
        log.error("cannot mount: %s", known)
        tell({"ok": False, "error": known.to_json()})
        return known.exit_code
    log.info("mounted %s, store %s", config.mountpoint, config.store)
    if config.crashes:
        log.info("started again: the daemon before was killed")

    def ready() -> None:
        standby.watch(config.mountpoint)
        tell({"ok": True, "pid": os.getpid()})

    try:
        daemon.run(ready)
    except CowfsError as error:
        log.error("the last changes could not be stored: %s", error)
        return error.exit_code
    finally:
        standby.dismiss()
    log.info("ended")
    return 0
