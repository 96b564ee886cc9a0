"""`cowfs checkpoint`."""

from __future__ import annotations

import time
from typing import Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output, reports
from cowfs.cli.command import command
from cowfs.cli.context import Context
from cowfs.client.places import Place


@command(
    "checkpoint",
    examples=[
        ("cowfs checkpoint", "keep the present state"),
        ('cowfs checkpoint -m "tests pass"', "with a message for the log"),
        ("cowfs checkpoint --label before-refactoring", "with a name for restore and diff"),
    ],
)
@click.option("-m", "--message", default="", metavar="TEXT", help="What this state is.")
@click.option("--label", default="", metavar="NAME", help="A unique name for the checkpoint.")
def checkpoint(context: Context, message: str, label: str) -> None:
    """Keep the present state, so that one can come back to it.

    It takes a few milliseconds whatever the size of the project, and is on stable storage when
    the command returns. Works on a workspace that is not mounted, too.
    """
    place = context.locate()
    message = output.valid(message)
    daemon = opening.connect(place)
    if daemon is not None:
        with daemon:
            answer = daemon.call("checkpoint", {"message": message, "label": label})
    else:
        answer = _offline(place, message, label)
    context.answer(answer, reports.checkpoint(answer))


def _offline(place: Place, message: str, label: str) -> dict[str, Any]:
    from cowfs.format import records
    from cowfs.service.checkpoint import checkpoint as make

    with opening.writing(place) as engine:
        started = time.perf_counter()
        record = make(engine, opening.author(), message=message, label=label)
        seconds = time.perf_counter() - started
    return {"checkpoint": records.to_dict(record), "made": True, "daemon_seconds": seconds}
