"""What the daemon would do, done by this process: for a workspace that is not mounted.

Threading: as the engine.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cowfs.service.engine import LocalEngine
    from cowfs.volume.history import Author


def checkpoint(engine: LocalEngine, author: Author, params: dict[str, Any]) -> dict[str, Any]:
    """The daemon's method `checkpoint` (docs/protocol.md). Raises CowfsError."""
    from cowfs.errors import CowfsError
    from cowfs.format import records
    from cowfs.service.automatic import unchanged
    from cowfs.service.sessions.registry import Registry
    from cowfs.service.sessions.witness import Witness

    started = time.perf_counter()
    last = record = unchanged(engine) if params.get("if_changed") else None
    if record is None:
        witness = Witness(engine, contextlib.nullcontext(), Registry(engine))
        record, note = witness.checkpoint(author, message=params["message"], label=params["label"])
        with contextlib.suppress(OSError, CowfsError):  # the checkpoint is made all the same
            note()
    return {
        "checkpoint": records.to_dict(record),
        "made": last is None,
        "daemon_seconds": time.perf_counter() - started,
    }


def restore(
    engine: LocalEngine, author: Author, operation: str, params: dict[str, Any]
) -> dict[str, Any]:
    """The daemon's methods `restore`, `undo` and `redo`. Raises CowfsError."""
    from cowfs.service import restore as restoring

    if operation == "undo":
        return restoring.undo(engine, author).to_json()
    if operation == "redo":
        return restoring.redo(engine, author).to_json()
    name, expect = params["checkpoint"], params["expect"]
    if params["conversation"] == "only":
        return restoring.converse(engine, author, name, expect=expect).to_json()
    return restoring.restore(
        engine,
        author,
        name,
        paths=[os.fsencode(path) for path in params["paths"]],
        exclude=[os.fsencode(pattern) for pattern in params["exclude"]],
        volatile=params["volatile"],
        conversation=params["conversation"] == "both",
        expect=expect,
    ).to_json()
