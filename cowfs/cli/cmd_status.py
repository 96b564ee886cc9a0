"""`cowfs status`."""

from __future__ import annotations

from pathlib import Path

from cowfs.cli import context as opening
from cowfs.cli import reports
from cowfs.cli.command import command
from cowfs.cli.context import Context
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
        from cowfs.service.status import stored_status

        report = stored_status(Path(place.store), place.mountpoint, problem)
    document = reports.placed(
        report,
        base=place.base,
        mountpoint=place.mountpoint,
        store=place.store,
        mounted=mounted,
    )
    context.answer(document, reports.status(document))
