"""`cowfs diff`."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from cowfs.cli import changes as texts
from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import Checkpoint, command
from cowfs.cli.context import Context
from cowfs.client.places import Place
from cowfs.errors import UnknownCheckpointError, UsageError
from cowfs.service.content import Tree
from cowfs.service.diff import Change
from cowfs.service.diff import diff as compare
from cowfs.service.selectors import Point
from cowfs.service.textdiff import patch, stat_of
from cowfs.service.workspace import ReadOnly

NAMES, STAT, PATCH = "name-status", "stat", "patch"


@command(
    "diff",
    examples=[
        ("cowfs diff", "since the last checkpoint"),
        ("cowfs diff tests-pass", "since that one"),
        ("cowfs diff 3f2a 9c1b src", "between two, in src only"),
        ("cowfs diff --patch @~1 | git apply -R", "a patch for git apply or patch -p1"),
        ("cowfs diff -- 3f2a", "a path that looks like a checkpoint"),
    ],
)
@click.argument("arguments", nargs=-1, metavar="[A] [B] [PATH]...", type=Checkpoint(paths=True))
@click.option("--stat", "form", flag_value=STAT, help="Lines and sizes of each change.")
@click.option(
    "--name-status", "form", flag_value=NAMES, default=True, help="A letter and the path (default)."
)
@click.option("-p", "--patch", "form", flag_value=PATCH, help="A git-style patch.")
@click.pass_context
def diff(ctx: click.Context, context: Context, arguments: tuple[str, ...], form: str) -> None:
    """Show what must happen to state A to become state B.

    Without B, B is the present state; without A, too, A is the last checkpoint. Letters: A added,
    D deleted, M modified, P only attributes, R renamed, T another type.
    """
    after = ctx.meta["after_dashes"] if ctx.meta["dashes"] else None
    named = arguments[len(arguments) - (after or 0) :]
    named += tuple(word for word in arguments if word.startswith(("/", "./", "../")))
    place = context.locate_paths(named, perhaps=arguments)
    with opening.reading(place) as workspace:
        a, b, paths = _sort_out(context, place, workspace, list(arguments), after)
        changes = compare(workspace, a, b, [os.fsencode(path) for path in paths])
        if form == PATCH:
            _patch(context, workspace, a, b, changes)
        elif form == STAT:
            rows = [(change, stat_of(change)) for change in changes]
            shown = [{**change.to_json(), **stat.to_json()} for change, stat in rows]
            context.answer(_document(a, b, shown), "\n".join(texts.table(rows)))
        else:
            shown = [change.to_json() for change in changes]
            context.answer(_document(a, b, shown), "\n".join(texts.lines(changes)))


def _document(a: Point, b: Point, changes: list[dict[str, Any]]) -> dict[str, Any]:
    return {"a": _name(a), "b": _name(b), "changes": changes}


def _name(point: Point) -> str:
    return point.checkpoint.id if point.checkpoint else "@"


def _sort_out(
    context: Context,
    place: Place,
    workspace: ReadOnly,
    words: list[str],
    after_dashes: int | None,
) -> tuple[Point, Point, list[str]]:
    """Which arguments are checkpoints, which are paths. `after_dashes`: so many must be paths."""
    names, paths = words, []
    if after_dashes is not None:
        at = len(words) - after_dashes
        names, paths = words[:at], words[at:]
        if len(names) > 2:
            raise UsageError(detail="before -- there are at most two checkpoints", command="diff")
    points: list[Point] = []
    while names and len(points) < 2:
        try:
            points.append(workspace.point(names[0]))
        except UnknownCheckpointError:
            if after_dashes is not None or not _is_path(context, place, workspace, names[0]):
                raise
            break
        names = names[1:]
    a = points[0] if points else workspace.point("@~1")
    b = points[1] if len(points) > 1 else workspace.point("@")
    return a, b, [context.inside(place, path) for path in [*names, *paths]]


def _is_path(context: Context, place: Place, workspace: ReadOnly, word: str) -> bool:
    """Whether a word is the path of something that is there, or was at the last checkpoint."""
    if word and os.path.lexists(os.path.join(context.directory, word)):
        return True
    try:
        path = os.fsencode(context.inside(place, word))
    except UsageError:
        return False
    last = Tree(workspace, workspace.point("@~1"))
    return last.find(path) is not None


def _patch(
    context: Context, workspace: ReadOnly, a: Point, b: Point, changes: list[Change]
) -> None:
    left_out: list[dict[str, str]] = []

    def omitted(path: bytes, why: str) -> None:
        left_out.append({"path": os.fsdecode(path), "why": why})
        if not context.json:
            output.note(f"not in the patch: {os.fsdecode(path)}: {why}")

    pieces = patch(workspace, a, b, changes, omitted=omitted)
    if context.json:
        text = os.fsdecode(b"".join(pieces))
        shown = [change.to_json() for change in changes]
        output.document({**_document(a, b, shown), "patch": text, "omitted": left_out})
        return
    for piece in pieces:
        sys.stdout.buffer.write(piece)
