"""`cowfs apply`."""

from __future__ import annotations

import click

from cowfs.cli import applying
from cowfs.cli import context as opening
from cowfs.cli.command import Directory, command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine


@command(
    "apply",
    examples=[
        ("cowfs apply", "the workspace around the working directory"),
        ("cowfs apply project --dry-run", "only count what would be written"),
    ],
)
@click.argument("directory", metavar="[DIR]", required=False, type=Directory())
@click.option("--dry-run", is_flag=True, help="Write nothing, say what would be written.")
def apply(context: Context, directory: str | None, dry_run: bool) -> None:
    """Write the present state of a workspace into the directory that it was made from.

    For a workspace that is mounted elsewhere, or not at all. What is overwritten or deleted there
    is kept in the store first. A run that is interrupted is finished by the next one.
    """
    place = context.locate(directory)
    daemon = opening.connect(place)
    if daemon is None:
        applied = applying.offline(place, dry_run=dry_run)
    else:
        with daemon, ProgressLine() as line:
            applied = daemon.call("apply", {"dry_run": dry_run}, applying.shown_on(line))
    context.answer(applied, applying.summary(applied, dry_run=dry_run))
