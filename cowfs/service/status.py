"""What `status` says of a workspace.

Threading: `volume_status` is for the volume's thread; `stored_status` opens the store itself.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from cowfs.format import records
from cowfs.service import config, workspace
from cowfs.service.expecting import present_state, state_of
from cowfs.service.sealing import sealing_state
from cowfs.service.selectors import last_checkpoint
from cowfs.service.sessions.listing import counted
from cowfs.service.timeline import head_counts
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
        "state": present_state(volume),
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
        "outside": volume.audit.outside,
        "health": {"state": state, "problems": problems},
        "time": time.time_ns(),
    }


def stored_status(store: Path, mountpoint: str, problem: str = "") -> dict[str, Any]:
    """The same of a workspace whose daemon does not say it, as its store has it. problem: why,
    when it is mounted all the same. Raises the errors of opening a store."""
    with workspace.reading(store, None) as opened:
        lineage = opened.reader.lineage(opened.branch.head)
        last = last_checkpoint(opened.reader, lineage)
        changes = head_counts(opened)
        now, agents = state_of(opened.reader), counted(opened.reader)
        used = opened.store.bytes_used()
        sealing = sealing_state(opened.reader)
        quota = workspace.describe(store)
        opened.store.quota = quota.quota if quota else 0
        room = opened.store.room()
    problems = [{"kind": "daemon", "path": mountpoint, "detail": problem}] if problem else []
    wrong = config.read(store).problems
    problems += [{"kind": "config", "path": "", "detail": str(error)} for error in wrong]
    state = "dead" if problem else "warning" if wrong else "ok"
    return {
        "branch": opened.branch.name,
        "head_epoch": opened.branch.head,
        "state": now,
        "last_checkpoint": records.to_dict(last) if last else None,
        "changes": records.to_dict(changes),
        "import": None,
        "sealing": sealing,
        "sessions": agents,
        "store_bytes": used,
        "used_bytes": room.used,
        "quota_bytes": room.quota,
        "room_bytes": room.left,
        "uncommitted_bytes": 0,
        "automatic": None,
        "health": {"state": state, "problems": problems},
        "time": time.time_ns(),
        "pid": None,
    }
