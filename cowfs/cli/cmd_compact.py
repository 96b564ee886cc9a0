"""`cowfs compact`."""

from __future__ import annotations

from pathlib import Path

import click

from cowfs.cli import output
from cowfs.cli.command import Directory, command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.errors import CompactMountedError
from cowfs.store.compaction import compact as write_anew


@command(
    "compact",
    examples=[
        ("cowfs compact", "the store of the workspace around the working directory"),
        ("cowfs compact project", "of another one"),
    ],
)
@click.argument("directory", metavar="[DIR]", required=False, type=Directory())
def compact(context: Context, directory: str | None) -> None:
    """Write the store's file anew, so that it takes as little room as it can.

    What was removed leaves room for what comes, but the file of a store never shrinks by itself.
    This makes another file with the same content, compressed harder, compares both record by
    record, and puts it in the old one's place. The workspace must not be mounted, and there must be
    room for another file beside the store's meanwhile. When it is interrupted the old file stays.
    """
    place = context.locate(directory)
    if place.mounted:
        raise CompactMountedError(path=place.mountpoint, base=place.base)
    with ProgressLine() as line:
        done = write_anew(Path(place.store), line.step)
    saved = done.before - done.after
    document = {"before": done.before, "after": done.after, "saved": saved}
    size = output.size
    if saved:
        text = f"{size(done.before)} became {size(done.after)}; {size(saved)} are free again"
    else:
        text = f"nothing to gain: it takes {size(done.before)}"
    context.answer(document, text)
