"""`cowfs status`."""

from __future__ import annotations

from cowfs.api import opening
from cowfs.cli import reports
from cowfs.cli.command import command
from cowfs.cli.context import Context


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
    report, mounted = opening.status(place)
    document = reports.placed(
        report,
        base=place.base,
        mountpoint=place.mountpoint,
        store=place.store,
        mounted=mounted,
    )
    context.answer(document, reports.status(document))
