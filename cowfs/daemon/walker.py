"""The background walk over the base: imports what nobody looked into yet, and finds what was
changed from outside since the last life of the workspace.

The walk makes way for requests.

Threading: one thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from cowfs.service.engine import Engine
from cowfs.service.walking import visit
from cowfs.types import ROOT_INO

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
            waiting: deque[int] = deque([ROOT_INO])
            seen: set[int] = {ROOT_INO}  # in a damaged store a directory may lie in itself
            while waiting and not self._stop.is_set():
                found, _ = visit(self._engine, waiting.popleft())
                waiting.extend(ino for ino in found if ino not in seen)
                seen.update(found)
                self._stop.wait(_BUSY_PAUSE_SECONDS if self._busy.is_set() else _PAUSE_SECONDS)
            if not waiting:
                self._engine.volume.importer.complete = True
        except RuntimeError:
            return  # unmounted meanwhile
        except Exception:
            log.exception("the background walk ended early; directories are imported when used")
