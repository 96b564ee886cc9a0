"""Sessions that were broken off and that nobody went on with.

Threading: for the threads that an `Engine` is for.
"""

from __future__ import annotations

import time

from cowfs.errors import DamagedRecordError
from cowfs.format.sessions import SessionRecord
from cowfs.service.engine import Engine
from cowfs.service.sessions import reading
from cowfs.store.snapshot import Reader

_OLDEST_NS = 14 * 86400 * 1_000_000_000
_MOST = 3


def interrupted(engine: Engine, beside: SessionRecord) -> tuple[SessionRecord, ...]:
    """Those that were interrupted after all work in other sessions, the newest first; `beside` is
    the one that begins now. What is older is no news any more."""
    found: list[SessionRecord] = []
    newest = time.time_ns() - _OLDEST_NS
    with Reader(engine.volume.store) as reader:
        try:
            for record in reading.sessions(reader):
                if record.parent or record.id == beside.id:
                    continue
                if reading.state(record) == reading.INTERRUPTED:
                    found.append(record)
                else:
                    newest = max(newest, record.last)
        except DamagedRecordError:
            return ()  # `verify` tells
    found.sort(key=lambda record: record.last, reverse=True)
    return tuple(record for record in found[:_MOST] if record.last > newest)
