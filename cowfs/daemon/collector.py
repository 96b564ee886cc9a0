"""The background of a daemon's retention: the policy, now and then; room, when the quota is near;
what became free of the store's file, back to the disk.

Threading: one thread of its own, which ends when `stop` is set. `asked` and `shrink` are for any
other thread that may wait; a background run gives way to them. `state` is for any thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cowfs.errors import CompactHolesError, CowfsError
from cowfs.mount.loop import LoopEndedError
from cowfs.service import config
from cowfs.service.collecting import Pace, Progress, Thinning, is_due
from cowfs.service.config import Retention
from cowfs.service.engine import Engine
from cowfs.service.housekeeping import Cleaned, clean, make_room
from cowfs.service.removing import Operation
from cowfs.service.sessions.registry import Registry
from cowfs.service.shrinking import Shrunk, is_worth_it, shrink, spared
from cowfs.store.snapshot import Reader
from cowfs.store.writer import WriterEndedError

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""Between two looks whether a quota is nearly reached."""
_SELDOM_SECONDS = 30.0
"""Without a quota: waking up costs an idle daemon more than all else."""
_POLICY_SECONDS = 3600.0
_FIRST_SECONDS = 300.0
"""After the mount: whoever mounts wants to work."""
_FAILED_SECONDS = 60.0
_REST = 1.0
_REST_ASKED = 0.5
"""Pauses between two steps, as of `Pace`."""
_SHORT = 10
_ENOUGH = 6
"""Room is made when less than 1/10 of the quota is left, until 1/6 is."""


class _Background(Pace):
    """Gives way to who is asked for."""

    def __init__(
        self, busy: threading.Event | None, stop: threading.Event, asked: threading.Event
    ) -> None:
        super().__init__(busy, stop, _REST)
        self._asked = asked

    def go_on(self) -> bool:
        return not self._asked.is_set() and super().go_on()


class Collector:
    """Collects in one daemon."""

    def __init__(
        self,
        engine: Engine,
        operation: Operation,
        store: Path,
        busy: threading.Event,
        stop: threading.Event,
        registry: Registry | None = None,
    ) -> None:
        self._engine = engine
        self._operation = operation
        self._registry = registry
        self._store = store
        self._busy = busy
        self._stop = stop
        self._asked = threading.Event()
        self._running = threading.Lock()
        self._last: dict[str, Any] | None = None
        self._looked: Thinning | None = None
        self._due = time.monotonic() + _FIRST_SECONDS
        self._room_due = self._shrink_due = 0.0
        self._can_shrink = True
        self._thread = threading.Thread(target=self._run, name="cowfs-collector", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Return when it has ended; `stop` must be set."""
        self._thread.join()

    def state(self) -> dict[str, Any] | None:
        """The last run that removed anything: time, reason ("policy", "quota" or "asked"), how many
        checkpoints, bytes freed. None when there was none yet."""
        return self._last

    def asked(self, rules: Retention | None, progress: Progress, *, idle: bool) -> Cleaned:
        """A run that somebody waits for. Errors as of `collect`."""
        with self._first():
            pace = Pace(self._busy if idle else None, self._stop, _REST_ASKED)
            done = self._clean(rules, pace, progress, thorough=True)
            self._note("asked", done)
            return done

    def shrink(self, progress: Progress) -> Shrunk:
        """Give all room that is free back to the disk. Errors as of `shrink`."""
        with self._first():
            return shrink(self._engine, Pace(None, self._stop, _REST_ASKED), progress)

    @contextlib.contextmanager
    def _first(self) -> Iterator[None]:
        """The run of somebody who waits, before those that nobody asked for."""
        self._asked.set()
        with self._running:
            self._asked.clear()
            yield

    def _clean(
        self, rules: Retention | None, pace: Pace, progress: Progress, *, thorough: bool = False
    ) -> Cleaned:
        done = clean(
            self._engine,
            self._operation,
            rules,
            pace,
            progress,
            thorough=thorough,
            registry=self._registry,
            looked=None if thorough else self._looked,
        )
        self._looked = done.thinning
        return done

    def _run(self) -> None:
        while not self._stop.wait(self._pause()):
            try:
                self._look(time.monotonic())
            except (LoopEndedError, WriterEndedError):
                return
            except CowfsError as error:
                log.warning("collecting garbage stopped: %s", error)
            except Exception:
                log.exception("collecting garbage ended early; `cowfs gc` goes on with it")
                return

    def _look(self, moment: float) -> None:
        """Do what is due at a moment of the monotonic clock."""
        if moment >= self._room_due and self._is_short():
            self._room_due = moment + _FAILED_SECONDS
            if self._make_room():
                self._room_due = 0.0
        elif moment >= self._due and not self._busy.is_set():
            self._due = moment + _POLICY_SECONDS
            self._keep_to_policy()
        elif moment >= self._shrink_due and not self._busy.is_set():
            self._shrink_due = moment + _FAILED_SECONDS
            if self._can_shrink:
                self._shrink(moment)

    def _shrink(self, moment: float) -> None:
        """Give back what is free, if it is much."""
        writer = self._engine.volume.writer
        writer.measure()
        if not is_worth_it(writer.room):
            return
        with self._running:
            pace = _Background(self._busy, self._stop, self._asked)
            try:
                done = shrink(self._engine, pace, lambda **_: None, spared=spared(writer.room))
            except CompactHolesError as error:
                log.info("%s", error)
                self._can_shrink = False
                return
        if done.complete:
            self._shrink_due = moment + _POLICY_SECONDS
        log.info("given back to the disk: %d bytes of %d", done.before - done.after, done.before)

    def _pause(self) -> float:
        return _LOOK_SECONDS if self._engine.volume.writer.room.quota else _SELDOM_SECONDS

    def _is_short(self) -> bool:
        room = self._engine.volume.writer.room
        return bool(room.quota) and room.quota - room.used < room.quota // _SHORT

    def _has_enough(self) -> bool:
        self._engine.volume.writer.measure()
        room = self._engine.volume.writer.room
        return not room.quota or room.quota - room.used >= room.quota // _ENOUGH

    def _make_room(self) -> bool:
        """Whether there is enough room now."""
        with self._running:
            pace = _Background(None, self._stop, self._asked)
            done = make_room(self._engine, self._operation, self._has_enough, pace, self._registry)
        self._note("quota", done)
        return self._has_enough()

    def _keep_to_policy(self) -> None:
        found = config.read(self._store)
        rules = None if found.problems else found.retention
        with self._running:
            pace = _Background(self._busy, self._stop, self._asked)
            done = self._clean(rules, pace, lambda **_: None)
        self._note("policy", done)
        if not done.collected.complete and self._is_due():
            self._due = time.monotonic() + _FAILED_SECONDS

    def _is_due(self) -> bool:
        with Reader(self._engine.volume.store) as reader:
            return is_due(reader)

    def _note(self, reason: str, done: Cleaned) -> None:
        if not done.removed and not done.collected.bytes:
            return
        self._last = {
            "time": time.time_ns(),
            "reason": reason,
            "checkpoints": len(done.removed),
            "thinned": len(done.thinned),
            "freed_bytes": done.collected.bytes,
        }
        ids = ", ".join(decision.checkpoint.id[:8] for decision in done.removed[:20])
        log.info(
            "collected (%s): %d checkpoints removed (%s), %d records, %d bytes of blocks",
            reason,
            len(done.removed),
            ids,
            done.collected.versions,
            done.collected.bytes,
        )
