"""`cowfs restore`, `cowfs undo`, `cowfs redo`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import Checkpoint, FilePath, command
from cowfs.cli.context import Context
from cowfs.client.places import Place
from cowfs.errors import UsageError

if TYPE_CHECKING:
    from cowfs.service.diff import Change


@command(
    "restore",
    examples=[
        ("cowfs restore 3f2a9c1b", "everything"),
        ("cowfs restore @~1 src/main.c docs", "only these, from the last checkpoint"),
        ('cowfs restore "@{10 minutes ago}"', "the last checkpoint before then"),
        ("cowfs restore tests-pass --exclude .venv", "but for what matches"),
        ("cowfs restore tests-pass --dry-run", "only say what would change"),
    ],
)
@click.argument("checkpoint", type=Checkpoint())
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=FilePath())
@click.option("--dry-run", is_flag=True, help="Change nothing, list what would change.")
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave paths or names that match alone (* ? []); may be repeated.",
)
@click.option(
    "--volatile", is_flag=True, help="Also what is volatile (`cowfs config volatile.paths`)."
)
def restore(
    context: Context,
    checkpoint: str,
    paths: tuple[str, ...],
    dry_run: bool,
    exclude: tuple[str, ...],
    volatile: bool,
) -> None:
    """Make the workspace, or only some paths of it, what it was at a checkpoint.

    Nothing is lost: the state before becomes a checkpoint of its own, to which `cowfs undo` goes
    back. What did not change keeps its inode and its times; open files stay usable. CHECKPOINT is
    an id, a label, @~N or @{TIME}.
    """
    place = context.locate()
    inside = [context.inside(place, path) for path in paths]
    if "" in inside:
        inside = []
    params = {
        "checkpoint": checkpoint,
        "paths": inside,
        "exclude": list(exclude),
        "volatile": volatile,
    }
    if dry_run:
        _preview(context, place, checkpoint, inside, exclude, volatile=volatile)
    else:
        _run(context, place, "restore", params)


@command("undo", examples=[("cowfs undo", "after a restore that was wrong")])
def undo(context: Context) -> None:
    """Take the last restore back: the workspace is again what it was before.

    What was done since then becomes a checkpoint, to which `cowfs redo` goes.
    """
    _run(context, context.locate(), "undo", {})


@command("redo", examples=[("cowfs redo", "after an undo that was wrong")])
def redo(context: Context) -> None:
    """Take the last undo back."""
    _run(context, context.locate(), "redo", {})


def _run(context: Context, place: Place, operation: str, params: dict[str, Any]) -> None:
    daemon = opening.connect(place)
    if daemon is not None:
        with daemon:
            answer = daemon.call(operation, params)
    else:
        answer = _offline(place, operation, params)
    context.answer(answer, _text(answer, params.get("paths", [])))


def _offline(place: Place, operation: str, params: dict[str, Any]) -> dict[str, Any]:
    from cowfs.format import records
    from cowfs.service import restore as restoring

    with opening.writing(place) as engine:
        author = opening.author()
        if operation == "undo":
            result = restoring.undo(engine, author)
        elif operation == "redo":
            result = restoring.redo(engine, author)
        else:
            result = restoring.restore(
                engine,
                author,
                params["checkpoint"],
                paths=[os.fsencode(path) for path in params["paths"]],
                exclude=[os.fsencode(pattern) for pattern in params["exclude"]],
                volatile=params["volatile"],
            )
    return {
        "operation": result.operation,
        "checkpoint": records.to_dict(result.checkpoint),
        "rescue": records.to_dict(result.rescue),
        "changed": result.changed,
        "left_alone": [os.fsdecode(pattern) for pattern in result.left_alone],
        "daemon_seconds": result.seconds,
    }


def _text(answer: dict[str, Any], paths: list[str]) -> str:
    target, rescue, operation = answer["checkpoint"], answer["rescue"], answer["operation"]
    about = target["label"] or target["message"].partition("\n")[0]
    what = f"{output.plural(len(paths), 'path')} of " if paths else ""
    done = "restored" if operation == "restore" else f"{operation}: restored"
    first = (
        f"{done} {what}{target['id'][:8]}{f' ({about})' if about else ''}: "
        f"{output.plural(answer['changed'], 'thing')} changed"
    )
    back = "redo" if operation == "undo" else "undo"
    second = f"the state before is checkpoint {rescue['id'][:8]}; `cowfs {back}` goes to it"
    lines = [output.printable(first), second]
    if left := answer["left_alone"]:
        names = ", ".join(output.printable(name) for name in left)
        lines.append(f"volatile, left alone: {names} (restore --volatile has them, too)")
    return "\n".join(lines)


def _preview(
    context: Context,
    place: Place,
    selector: str,
    paths: list[str],
    exclude: tuple[str, ...],
    *,
    volatile: bool,
) -> None:
    from cowfs.cli.changes import lines
    from cowfs.format import records
    from cowfs.service.diff import count, diff
    from cowfs.service.volatile import left_alone

    named = [os.fsencode(path) for path in paths]
    left = [] if volatile else left_alone(Path(place.store), named)
    patterns = [*map(os.fsencode, exclude), *left]
    with opening.reading(place) as workspace:
        target = workspace.point(selector)
        if target.checkpoint is None:
            raise UsageError(detail="@ is the present state already", command="restore")
        found = diff(workspace, workspace.point("@"), target, named)
        changes = [change for change in found if not _excluded(change, patterns)]
        document = {
            "operation": "restore",
            "dry_run": True,
            "checkpoint": records.to_dict(target.checkpoint),
            "rescue": None,
            "changed": len(changes),
            "left_alone": [os.fsdecode(pattern) for pattern in left],
            "counts": count(changes),
            "changes": [change.to_json() for change in changes],
        }
        text = [f"would restore {target.name}: {output.plural(len(changes), 'change')}"]
        text += lines(changes)
        context.answer(document, "\n".join(text))


def _excluded(change: Change, patterns: list[bytes]) -> bool:
    """Whether a restore leaves all paths of a change alone: a path, one above it, or a name."""
    from cowfs.service.volatile import matches

    paths = [change.path] if change.old_path is None else [change.path, change.old_path]
    return all(matches(path, patterns) for path in paths)
