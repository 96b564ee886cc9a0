"""Background sealing: brings the base's content into the store while nobody uses the mount.

Threading: one thread of its own, which ends when `stop` is set.
"""

from __future__ import annotations

import logging
import threading

from cowfs.errors import CowfsError
from cowfs.mount.loop import LoopEndedError
from cowfs.service.engine import Engine
from cowfs.service.sealing import Pace, seal

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 60.0
"""Between two looks at whether something is unsealed: adopted changes, above all."""
_WALK_SECONDS = 0.25


class Sealer:
    """Seals everything, at a rate, whenever the mount is idle."""

    def __init__(
        self, engine: Engine, rate: float, busy: threading.Event, stop: threading.Event
    ) -> None:
        """`rate`: bytes a second. `busy`: set while requests come."""
        self._engine = engine
        self._pace = Pace(rate, busy, stop)
        self._stop = stop
        self._thread = threading.Thread(target=self._run, name="cowfs-sealer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Return when it has ended; `stop` must be set."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._engine.volume.importer.complete:
                if self._stop.wait(_WALK_SECONDS):
                    return
            while True:
                self._pass()
                if self._stop.wait(_AGAIN_SECONDS):
                    return
        except LoopEndedError:
            return  # unmounted meanwhile
        except Exception:
            log.exception("background sealing ended early; `cowfs seal` goes on with it")

    def _pass(self) -> None:
        try:
            done = seal(self._engine, [], self._pace, lambda **_: None)
        except CowfsError as error:
            log.warning("sealing stopped: %s", error)
            return
        if done.files:
            log.info("sealed %d files, %d bytes; %d left", done.files, done.bytes, done.unsealed)
