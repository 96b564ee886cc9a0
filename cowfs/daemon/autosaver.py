"""Automatic checkpoints: when the schedule says so, and before deletions.

It also keeps an eye on the configuration: a change is taken over within a second.

Threading: `tick` is called by the timer; `state` and `problems` by any thread. Checkpoints are made
in a thread of its own, which waits for the FUSE thread, the writer and the kernel. It does not wait
for another operation: the next tick asks again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cowfs.daemon.deletions import Deletions
from cowfs.daemon.schedule import Schedule
from cowfs.errors import InternalError, as_cowfs_error
from cowfs.mount.loop import LoopEndedError
from cowfs.mount.operations import Operations
from cowfs.service import config
from cowfs.service.automatic import Belonging, save
from cowfs.service.engine import Engine
from cowfs.volume.history import Author

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.9
"""Between two looks at the configuration; the timer ticks once a second at least."""


class Autosaver:
    """Makes the automatic checkpoints of one mount."""

    def __init__(
        self,
        engine: Engine,
        operations: Operations,
        operation: threading.RLock,
        store: Path,
        author: Author,
        *,
        enabled: bool,
    ) -> None:
        """`operations`: told whom to ask before a removal.
        `operation`: the lock of what must not overlap. `enabled`: False for none at all.
        `context` (an attribute): what else is kept with a checkpoint, see `save`."""
        self._engine = engine
        self._operation = operation
        self._store = store
        self._author = author
        self._enabled = enabled
        self._config = config.read(store)
        self._seen = self._signature()
        self._schedule = Schedule(self._config.checkpoints)
        self._deletions = Deletions(engine.volume, operation, author)
        self.context: Callable[[], Belonging] | None = None
        self._failure = ""
        self._made = 0
        self._moment = self._looked = 0.0
        self._reason = ""
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="cowfs-autosaver", daemon=True)
        self._follow()
        if enabled:
            operations.before_removal = self._deletions.before

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when it has ended."""
        self._stopping = True
        self._wake.set()
        self._thread.join()

    @property
    def busy(self) -> bool:
        """Whether it is making one."""
        return self._wake.is_set()

    def tick(self, moment: float) -> None:
        """Look whether something is due; `moment` of the monotonic clock."""
        self._moment = moment
        if moment - self._looked >= _LOOK_SECONDS:
            self._looked = moment
            if (now := self._signature()) != self._seen:
                self._seen = now
                self._config = config.read(self._store)
                self._follow()
        if not self._enabled or self.busy:
            return
        view = self._engine.volume.main
        files = len(view.created) + len(view.touched) + len(view.deleted)
        self._schedule.observe(moment, view.head, view.changes, files)
        self._reason = self._schedule.due(moment)
        if self._reason or self._deletions.over(moment):
            self._wake.set()

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._store / config.FILE)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _follow(self) -> None:
        """Take the configuration over."""
        policy = self._config.checkpoints
        for problem in self._config.problems:
            log.warning("%s", problem)
        self._schedule.policy = policy
        self._deletions.files = policy.before_deletion
        self._deletions.spacing = policy.spacing

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if self._stopping:
                return
            if self._operation.acquire(blocking=False):
                try:
                    self._engine.call(self._deletions.finish)
                    if self._reason:
                        self._save()
                except LoopEndedError:
                    return
                except Exception:
                    log.exception("an automatic checkpoint")
                finally:
                    self._operation.release()
            self._wake.clear()

    def _save(self) -> None:
        try:
            made = save(self._engine, self._author, self._reason, self.context)
        except LoopEndedError:
            raise
        except Exception as error:
            known = as_cowfs_error(error)
            self._failure = str(known)
            unexpected = isinstance(known, InternalError) and not isinstance(error, OSError)
            log.warning("no automatic checkpoint: %s", known, exc_info=unexpected)
            self._schedule.failed(self._moment)
            return
        self._failure = ""
        if made is None:
            self._schedule.nothing()
        else:
            self._made += 1

    def state(self) -> dict[str, Any]:
        """What `status` says of it."""
        return {
            "enabled": self._enabled,
            "profile": self._config.checkpoints.profile,
            "made": self._made,
        }

    def problems(self) -> list[dict[str, str]]:
        """What is wrong now, as rows of `status`."""
        rows = [str(problem) for problem in self._config.problems]
        found = [{"kind": "config", "path": "", "detail": detail} for detail in rows]
        if self._failure:
            detail = f"no automatic checkpoint could be made: {self._failure}"
            found.append({"kind": "automatic", "path": "", "detail": detail})
        return found
