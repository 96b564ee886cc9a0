"""The background walk over the base: imports what nobody looked into yet, and finds what was
changed from outside since the last life of the workspace.

The listing of each directory is read here; only taking it over happens in the FUSE thread. The
walk makes way for requests.

Threading: one thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from cowfs.format import records
from cowfs.service.engine import Engine
from cowfs.volume.base import BaseEntry
from cowfs.volume.posix import PosixError

log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.0002
_BUSY_PAUSE_SECONDS = 0.02


class Walker:
    """Walks the directories of the head, breadth first."""

    def __init__(self, engine: Engine, busy: threading.Event) -> None:
        """`busy`: set while requests come; the walk then goes slowly."""
        self._engine = engine
        self._busy = busy
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cowfs-walker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the walk; it goes on in the next life."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            waiting: deque[int] = deque([1])
            while waiting and not self._stop.is_set():
                waiting.extend(self._visit(waiting.popleft()))
                self._stop.wait(_BUSY_PAUSE_SECONDS if self._busy.is_set() else _PAUSE_SECONDS)
            if not waiting:
                self._engine.volume.importer.complete = True
        except RuntimeError:
            return  # unmounted meanwhile
        except Exception:
            log.exception("the background walk ended early; directories are imported when used")

    def _visit(self, ino: int) -> list[int]:
        """Bring one directory up to date; returns its sub-directories."""
        volume = self._engine.volume
        importer, view = volume.importer, volume.main
        path = self._engine.call(lambda: importer.needs_listing(view, ino))
        listing: list[BaseEntry] | None = None
        if path is not None and volume.base is not None:
            try:
                listing = volume.base.scan(path)
            except OSError as error:
                log.info("cannot list %r: %s", path, error)

        def take() -> list[int]:
            try:
                if listing is not None:
                    importer.offer_listing(view, ino, listing)
                entries = view.directory(ino).entries or {}
            except PosixError:
                return []
            directory = records.kind_of(0o040000)
            children = [packed >> 4 for packed in entries.values() if packed & 15 == directory]
            inode = view.inodes.get(ino)
            if inode is not None and inode.idle:
                del view.inodes[ino]
            return children

        return self._engine.call(take)
