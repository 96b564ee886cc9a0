"""`cowfs show`."""

from __future__ import annotations

import base64
import os
import sys
import time

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import Checkpoint, command
from cowfs.cli.context import Context
from cowfs.client.places import Place
from cowfs.errors import UsageError
from cowfs.service.export import read_file


@command(
    "show",
    examples=[
        ("cowfs show 3f2a9c1b:src/main.c", "the file as it was"),
        ("cowfs show @~1:data.bin > old.bin", "byte for byte"),
        ('cowfs show "@{1 hour ago}:notes.md"', "at a time"),
        ("cowfs show 3f2a9c1b --session", "what was around: processes, open files, ports ..."),
    ],
)
@click.argument("what", metavar="CHECKPOINT[:PATH]", type=Checkpoint(suffix=":"))
@click.option(
    "--session",
    "around",
    is_flag=True,
    help="Show what is kept besides the files: the session of an agent and its conversation, "
    "processes, open files, ports, locks, the environment.",
)
def show(context: Context, what: str, around: bool) -> None:
    """Print a file as it was at a checkpoint; of a symbolic link, where it pointed to. Or, with
    --session, what was around at a checkpoint.

    PATH is relative to the working directory. With --json the content is in base64.

    While the workspace is mounted, any tool finds the same below .cowfs/checkpoints/CHECKPOINT, at
    the top of it: an id, at least 4 digits of one, or a label.
    """
    if around:
        _show_session(context, context.locate(), what)
        return
    selector, path = _split(what)
    place = context.locate_paths([path])
    inside = context.inside(place, path)
    with opening.reading(place) as workspace:
        point = workspace.point(selector)
        node, pieces = read_file(workspace, point, os.fsencode(inside))
        if context.json:
            content = base64.b64encode(b"".join(pieces)).decode("ascii")
            name = point.checkpoint.id if point.checkpoint else "@"
            output.document(
                {
                    "checkpoint": name,
                    "path": inside,
                    **node.to_json(),
                    "encoding": "base64",
                    "content": content,
                }
            )
            return
        for piece in pieces:
            sys.stdout.buffer.write(piece)


def _show_session(context: Context, place: Place, selector: str) -> None:
    from cowfs.cli.surroundings import report
    from cowfs.service.sessions.showing import shown

    with opening.reading(place, need_base=False) as workspace:
        point = workspace.point(selector)
        if point.checkpoint is None:
            detail = "@ is the present state, not a checkpoint"
            raise UsageError(detail=detail, command="show")
        document = shown(workspace.reader, point.checkpoint)
    context.answer(document, report(document, time.time_ns()))


def _split(what: str) -> tuple[str, str]:
    """Checkpoint and path; a time may have colons of its own."""
    if what.startswith("@{"):
        selector, found, path = what.partition("}:")
        selector += "}"
    else:
        selector, found, path = what.partition(":")
    if not found or not path:
        raise UsageError(detail=f"{what!r} is not of the form CHECKPOINT:PATH", command="show")
    return selector, path
