"""Keeps the state before a big deletion.

How big a deletion is going to be is known when most of it is gone, and what is gone from the open
epoch leaves nothing. So the epoch is sealed at the *first* removal of a run (none came in the
`RUN_SECONDS` before it) if it has changes that no checkpoint has: in the FUSE thread, between two
requests, in less than a millisecond. In a run that goes on it is done again every `spacing` seconds
if things were made or changed meanwhile. When the run is over and was big, the checkpoint is
told so (service/automatic.py). Where another operation is at work in that moment (a step of
garbage collection, say), which a removal cannot wait for, the next removal tries again.

The kernel's dirty pages cannot be flushed here: they come by requests that this thread must answer.
So what programs have written to files that they still hold open, and the kernel has not sent yet,
is not in such a checkpoint. What was closed is.

Threading: `before` and `finish` run in the FUSE thread; `over` in any.
"""

from __future__ import annotations

import logging
import math
import threading
import time

from cowfs.errors import DamagedRecordError
from cowfs.service.automatic import BEFORE_DELETIONS, has_changes, tell_deletion
from cowfs.service.selectors import AUTOMATIC
from cowfs.store.env import LmdbError
from cowfs.volume import history
from cowfs.volume.history import Author
from cowfs.volume.posix import PosixError
from cowfs.volume.volume import Volume

log = logging.getLogger(__name__)

RUN_SECONDS = 2.0
"""A pause in removals that ends a run."""
_GIVE_UP_SECONDS = 60.0


class Deletions:
    """Watches removals in one volume.

    files: so many make a deletion big; 0 for no checkpoints here. spacing: seconds. author: who
    makes them. operation: the lock of what must not overlap.
    """

    def __init__(self, volume: Volume, operation: threading.RLock, author: Author) -> None:
        self.files = 0
        self.spacing = math.inf
        self._volume = volume
        self._operation = operation
        self._author = author
        self._last = self._looked = -math.inf
        self._count = 0
        self._kept = ""
        self._missed = False

    def before(self, parent: int, name: bytes, files: int) -> None:
        """A name is about to be removed, of so many files (0 for a directory)."""
        moment = time.monotonic()
        if self._missed or moment - self._last > RUN_SECONDS:
            self._begin(moment, parent, name, fresh=True)
        elif moment - self._looked > self.spacing:
            self._begin(moment, parent, name, fresh=False)
        self._last = moment
        self._count += files

    def _begin(self, moment: float, parent: int, name: bytes, *, fresh: bool) -> None:
        self._looked, self._missed = moment, False
        if fresh:
            self.finish()
            self._kept = ""
        volume = self._volume
        if not self.files or volume.full or volume.writer.failure is not None:
            return
        try:
            volume.external.adoption.settle()
            if not self._has_unsaved(parent, name, fresh=fresh):
                return
            if not self._operation.acquire(blocking=False):
                self._missed = True
                return
            try:
                if self._kept:
                    self._tell()
                sealed = history.seal(
                    volume, self._author, kind=AUTOMATIC, message=BEFORE_DELETIONS
                )
            finally:
                self._operation.release()
        except PosixError:
            return  # the removal fails for the same reason: the directory is none of the head's
        except (DamagedRecordError, LmdbError) as error:
            log.warning("no checkpoint before a deletion: %s", error)
            return
        except Exception:  # a defect here must not keep anybody from deleting
            log.exception("no checkpoint before a deletion")
            return
        self._kept, self._count = sealed.checkpoint.id, 0

    def _has_unsaved(self, parent: int, name: bytes, *, fresh: bool) -> bool:
        """Whether a checkpoint is worth it: not for what only makes something and removes it, and
        not for the removals of a run that goes on."""
        view = self._volume.main
        entry = (view.directory(parent).entries or {}).get(name, 0)
        ino = entry >> 4
        for inodes in (view.created, view.touched):
            if len(inodes) > (ino in inodes):
                return True
        if any(i.ino != ino and not (i.is_dir or i.orphan_epoch) for i in view.changed):
            return True
        if not fresh:
            return False
        named = any(packed and packed != entry for packed in view.names.values())
        if named or view.deleted:
            return True
        return not view.created and not view.touched and has_changes(self._volume)

    def over(self, moment: float) -> bool:
        """Whether a run has ended whose checkpoint can be told how big it was: call `finish`."""
        return bool(self._kept) and moment - self._last > RUN_SECONDS

    def finish(self) -> None:
        """Tell the checkpoint of a run that is over how much was deleted, if that was much."""
        if self.over(time.monotonic()):
            self._tell()

    def _tell(self) -> None:
        done = self._count < self.files or not self.files
        try:
            done = done or tell_deletion(self._volume, self._kept, self._count)
        except (DamagedRecordError, LmdbError) as error:
            log.warning("checkpoint %s is not told of a deletion: %s", self._kept, error)
            done = True
        if done or time.monotonic() - self._last > _GIVE_UP_SECONDS:
            self._kept = ""
