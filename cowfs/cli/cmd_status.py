"""`cowfs status`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from cowfs.cli import context as opening
from cowfs.cli import reports
from cowfs.cli.command import command
from cowfs.cli.context import Context
from cowfs.client.places import Place
from cowfs.errors import DaemonUnreachableError


@command(
    "status",
    examples=[
        ("cowfs status", "of the workspace around the working directory"),
        ("cowfs -C ~/project status --json", "of another one, for a program"),
    ],
)
def status(context: Context) -> None:
    """Show whether the workspace is mounted, what changed since the last checkpoint, and whether
    all is well.
    """
    place = context.locate()
    mounted, problem = place.mounted, ""
    try:
        daemon = opening.connect(place)
    except DaemonUnreachableError as error:
        daemon, mounted, problem = None, False, str(error)
    if daemon is not None:
        with daemon:
            report = daemon.call("status", {"flush": True})
    else:
        report = _offline(place, problem)
    document = reports.placed(
        report,
        base=place.base,
        mountpoint=place.mountpoint,
        store=place.store,
        mounted=mounted,
    )
    context.answer(document, reports.status(document))


def _offline(place: Place, problem: str) -> dict[str, Any]:
    """What the store says. `problem`: why its daemon does not say it."""
    from cowfs.format import records
    from cowfs.service import config, workspace
    from cowfs.service.sealing import sealing_state
    from cowfs.service.selectors import last_checkpoint
    from cowfs.service.timeline import head_counts

    with workspace.reading(Path(place.store), None) as opened:
        lineage = opened.reader.lineage(opened.branch.head)
        last = last_checkpoint(opened.reader, lineage)
        changes = head_counts(opened)
        used = opened.store.bytes_used()
        sealing = sealing_state(opened.reader)
        quota = workspace.describe(Path(place.store))
        opened.store.quota = quota.quota if quota else 0
        room = opened.store.room()
    problems = [{"kind": "daemon", "path": place.mountpoint, "detail": problem}] if problem else []
    wrong = config.read(Path(place.store)).problems
    problems += [{"kind": "config", "path": "", "detail": str(error)} for error in wrong]
    state = "dead" if problem else "warning" if wrong else "ok"
    return {
        "branch": opened.branch.name,
        "head_epoch": opened.branch.head,
        "last_checkpoint": records.to_dict(last) if last else None,
        "changes": records.to_dict(changes),
        "import": None,
        "sealing": sealing,
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
