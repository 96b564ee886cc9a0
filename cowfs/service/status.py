"""What `status` says of a volume.

Threading: owned by the volume's thread.
"""

from __future__ import annotations

import time
from typing import Any

from cowfs.format import records
from cowfs.service.selectors import last_checkpoint
from cowfs.volume.volume import Volume


def volume_status(volume: Volume) -> dict[str, Any]:
    """The volume's part of the status report (docs/protocol.md)."""
    view, importer = volume.main, volume.importer
    last = last_checkpoint(volume.reader, view.lineage)
    failure = volume.writer.failure
    problems = list(volume.problems)
    state = "ok"
    volume.writer.measure()
    room = volume.writer.room
    if volume.full:
        what = "its quota" if room.limited_by_quota else "its disk"
        detail = (
            f"{what} is full: nothing new can be written; deleting, checkpoints and unmount work"
        )
        problems.append({"kind": "full", "path": "", "detail": detail})
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
        "used_bytes": room.used,
        "quota_bytes": room.quota,
        "room_bytes": room.left,
        "uncommitted_bytes": volume.uncommitted_bytes,
        "inodes_in_memory": len(view.inodes),
        "browsed": len(volume.visits),
        "health": {"state": state, "problems": problems},
        "time": time.time_ns(),
    }
