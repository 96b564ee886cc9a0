"""`cowfs export`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import Checkpoint, FilePath, command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.client import places
from cowfs.errors import UsageError
from cowfs.service.export import Exported, export_tree


@command(
    "export",
    examples=[
        ("cowfs export 3f2a9c1b /tmp/then", "a directory"),
        ("cowfs export tests-pass then.tar --tar", "an archive"),
        ("cowfs export @ - --tar | ssh host tar -x", "an archive to stdout"),
    ],
)
@click.argument("checkpoint", type=Checkpoint())
@click.argument("destination", metavar="DEST", type=FilePath())
@click.option("--tar", is_flag=True, help="Write a tar archive; DEST may be - for stdout.")
def export(context: Context, checkpoint: str, destination: str, tar: bool) -> None:
    """Write a whole state out: contents, modes, owners, times, links, extended attributes.

    DEST must not exist yet (a directory may be empty). @ is the present state.
    """
    place = context.locate()
    to_stdout = tar and destination == "-"
    if to_stdout and context.json:
        raise UsageError(detail="--json and an archive cannot both go to stdout", command="export")
    target: Path | BinaryIO
    if to_stdout:
        target = sys.stdout.buffer
    else:
        path = context.path(destination)
        for top in {place.mountpoint, place.base}:
            if places.is_below(path, top):
                raise UsageError(detail=f"{path} is inside the workspace", command="export")
        target = Path(path)
    with opening.reading(place) as workspace, ProgressLine() as line:

        def progress(entries: int, size: int) -> None:
            line.show(f"exporting: {output.plural(entries, 'entry', 'entries')}")

        point = workspace.point(checkpoint)
        done = export_tree(workspace, point, target, tar=tar, progress=progress)
    _tell(context, done, os.fspath(target) if isinstance(target, Path) else "-")


def _tell(context: Context, done: Exported, destination: str) -> None:
    document: dict[str, Any] = {"destination": destination, **done.to_json()}
    if destination != "-":
        files = output.plural(done.files, "file")
        directories = output.plural(done.directories, "directory", "directories")
        where = output.printable(destination)
        text = f"wrote {files} in {directories} to {where} ({output.size(done.bytes_written)})"
        context.answer(document, text)
    if context.json:
        return
    for problem in done.problems:
        output.note(f"{os.fsdecode(problem.path) or '.'}: {problem.what}: {problem.detail}")
    if done.problem_count > len(done.problems):
        output.note(f"and {done.problem_count - len(done.problems):,} more")
