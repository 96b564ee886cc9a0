"""`python -m tests.mount.late_requests CONFIG READY_FD`: a daemon that meets some requests late.

The first removal or renaming of each name that begins with "late" waits until the next restore has
changed the epoch, and is done before the kernel is told anything. So it is with requests that the
kernel has sent at the wrong moment.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from cowfs.daemon.__main__ import main
from cowfs.mount import holding
from cowfs.mount.loop import Event, Loop
from cowfs.mount.operations import Operations
from cowfs.mount.requests import Answer

log = logging.getLogger("cowfs")
_seen: set[tuple[str, bytes]] = set()
_waiting: list[tuple[Loop, Event]] = []
_Handler = Callable[..., Answer]


def _late(handler: _Handler) -> _Handler:
    def wrapper(self: Any, parent: int, name: bytes, *rest: Any) -> Answer:
        key = (handler.__name__, name)
        if not name.startswith(b"late") or key in _seen:
            return handler(self, parent, name, *rest)
        _seen.add(key)
        event = Event()
        _waiting.append((self._waiter, event))
        log.info("%s waits", handler.__name__)
        return wait(event, self, parent, name, *rest)

    async def wait(event: Event, *arguments: Any) -> Answer:
        await event
        return handler(*arguments)

    return wrapper


def _tell_nobody_before_they_are_done(pages: Callable[..., None]) -> Callable[..., None]:
    def wrapper(*arguments: Any) -> None:
        for loop, event in _waiting:
            loop.call(lambda: loop._set(event))  # noqa: B023
            loop.call(lambda: None)  # what is ready goes first
        _waiting.clear()
        pages(*arguments)

    return wrapper


if __name__ == "__main__":
    for name in ("rmdir", "unlink", "rename"):
        setattr(Operations, name, _late(getattr(Operations, name)))
    holding._drop_pages = _tell_nobody_before_they_are_done(holding._drop_pages)
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
