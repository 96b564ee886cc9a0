"""What `status` says of a volume.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import time
from typing import Any

from cowfs.format import records
from cowfs.service.selectors import on_line
from cowfs.store.snapshot import Reader
from cowfs.volume.volume import Volume


def volume_status(volume: Volume) -> dict[str, Any]:
    """The volume's part of the status report (docs/protocol.md)."""
    view, importer = volume.main, volume.importer
    last = next(on_line(volume.reader, view.lineage), None)
    failure = volume.writer.failure
    problems = list(volume.problems)
    state = "ok"
    if problems:
        state = "warning"
    if failure is not None:
        state = "failing"
        problems.append({"kind": "store", "path": "", "detail": str(failure)})
    return {
        "branch": view.branch,
        "head_epoch": view.head,
        "last_checkpoint": records.to_dict(last) if last else None,
        "changes": records.to_dict(view.counts()),
        "import": {
            "directories": importer.directories,
            "files": importer.files,
            "complete": importer.complete,
        },
        "store_bytes": volume.store.bytes_used(),
        "uncommitted_bytes": volume.uncommitted_bytes,
        "inodes_in_memory": len(view.inodes),
        "health": {"state": state, "problems": problems},
        "time": time.time_ns(),
    }


def sealing(reader: Reader) -> dict[str, int]:
    """How much history still rests on the base directory: files whose content is not in the store
    (`unsealed`; directories that were not listed yet count as one), and files whose old content
    was changed outside before it was saved (`lost`). For any thread, with a reader of its own."""
    states = [0, 0, 0]
    for _, value in reader.scan("origin"):
        states[value[0]] += 1
    return {
        "unsealed": states[records.ORIGIN_UNLISTED],
        "lost": states[records.ORIGIN_LOST],
    }
