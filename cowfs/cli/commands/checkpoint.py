"""`cowfs checkpoint`."""

from __future__ import annotations

import click

from cowfs.api import offline
from cowfs.cli import context as opening
from cowfs.cli import output, reports
from cowfs.cli.command import command
from cowfs.cli.context import Context
from cowfs.errors import BadLabelError


@command(
    "checkpoint",
    examples=[
        ("cowfs checkpoint", "keep the present state"),
        ('cowfs checkpoint -m "tests pass"', "with a message for the log"),
        ("cowfs checkpoint --label before-refactoring", "with a name for restore and diff"),
    ],
)
@click.option("-m", "--message", default="", metavar="TEXT", help="What this state is.")
@click.option(
    "--label", metavar="NAME", help="A unique name for the checkpoint; not `a/b` beside `a`."
)
def checkpoint(context: Context, message: str, label: str | None) -> None:
    """Keep the present state, so that one can come back to it.

    It takes a moment, whatever the size of the project, and is on stable storage when
    the command returns. Works on a workspace that is not mounted, too.
    """
    if label == "":
        raise BadLabelError(label=label, reason="it is empty")
    place = context.locate()
    message = output.valid(message)
    params = {"message": message, "label": label or ""}
    daemon = opening.connect(place)
    if daemon is not None:
        with daemon:
            answer = daemon.call("checkpoint", params)
    else:
        with opening.writing(place) as engine:
            answer = offline.checkpoint(engine, opening.author(), params)
    context.answer(answer, reports.checkpoint(answer))
