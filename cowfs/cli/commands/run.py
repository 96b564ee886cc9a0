"""`cowfs run`."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import click

from cowfs.cli import changes as texts
from cowfs.cli import context as opening
from cowfs.cli import output, running
from cowfs.cli.command import command
from cowfs.cli.context import Context, Daemon
from cowfs.client.places import Place
from cowfs.client.rpc import RpcError
from cowfs.errors import CowfsError, NotMountedError
from cowfs.service.diff import Change, count

_MOST_LINES = 10


@command(
    "run",
    examples=[
        ("cowfs run -- make install", "and say what it changed"),
        ("cowfs run -m 'upgrade' -- npm update", "with a message for the log"),
        ("cowfs run --no-undo-offer -- ./generate.sh", "without the question at the end"),
    ],
)
@click.argument(
    "words", metavar="[--] COMMAND [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED
)
@click.option("-m", "--message", default="", metavar="TEXT", help="For the checkpoints.")
@click.option("--no-undo-offer", is_flag=True, help="Do not ask whether to take it back.")
def run(context: Context, words: tuple[str, ...], message: str, no_undo_offer: bool) -> None:
    """Run a command between two checkpoints, and say what changed while it ran.

    It has the terminal, and its exit code is that of cowfs: 127 if it was not found, 126 if it
    cannot be executed. On a terminal you are asked whether to take the changes back. What cowfs
    says goes to stderr; with --json, what the command prints does, too.
    """
    place = context.locate()
    line = output.valid(message) or shlex.join(words)
    before = _checkpoint(place, f"before: {line}")
    try:
        code = running.run(words, context.directory, stdout=2 if context.json else None)
    except OSError as error:
        code = running.exit_code_of(error)
        output.note(f"{words[0]} cannot be run: {(error.strerror or str(error)).lower()}")
    try:
        _report(context, context.locate(), words, code, before, line, offer=not no_undo_offer)
    except (CowfsError, RpcError) as error:
        fields = error.error if isinstance(error, RpcError) else error.to_json()
        failed = output.error(fields, as_json=context.json)
        raise click.exceptions.Exit(code or failed) from None
    raise click.exceptions.Exit(code)


run.allow_interspersed_args = False


def _daemon(place: Place) -> Daemon:
    daemon = opening.connect(place)
    if daemon is None:
        raise NotMountedError(path=place.base)
    return daemon


def _checkpoint(place: Place, message: str) -> dict[str, Any]:
    """A checkpoint of the present state: a new one, or the last if nothing has changed since."""
    with _daemon(place) as daemon:
        answer = daemon.call("checkpoint", {"message": message[:2000], "if_changed": True})
    found = answer["checkpoint"]
    assert isinstance(found, dict)
    return found


def _report(
    context: Context,
    place: Place,
    words: tuple[str, ...],
    code: int,
    before: dict[str, Any],
    line: str,
    *,
    offer: bool,
) -> None:
    after = _checkpoint(place, f"after: {line}")
    changes = _changes(place, before["id"], after["id"]) if after["id"] != before["id"] else []
    back = f"cowfs restore {before['id'][:8]}"
    if context.json:
        output.document(
            {
                "command": list(words),
                "exit_code": code,
                "before": before,
                "after": after,
                "counts": count(changes),
                "changes": [change.to_json() for change in changes],
                "take_back": back if changes else None,
            }
        )
        return
    if not changes:
        output.note("nothing changed")
        return
    sys.stdout.flush()
    for text in _summary(changes, before, after):
        output.note(text)
    if not (offer and running.is_terminal()):
        output.note(f"`{back}` takes it back")
    elif click.confirm("cowfs: take it back?", default=False, err=True):
        with _daemon(place) as daemon:
            params = {"checkpoint": before["id"], "expect": after["id"]}
            answer = daemon.call("restore", params)
        output.note(f"taken back: {output.plural(answer['changed'], 'thing')} changed")
        output.note(f"`cowfs restore {after['id'][:8]}` brings it again")
    else:
        output.note(f"kept; `{back}` takes it back")


def _changes(place: Place, before: str, after: str) -> list[Change]:
    from cowfs.service.diff import diff

    with opening.reading(place) as workspace:
        return diff(workspace, workspace.point(before), workspace.point(after), [])


def _summary(changes: list[Change], before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """How much, and the largest of it."""
    counts = count(changes)
    added, deleted = counts["added"], counts["deleted"]
    others = len(changes) - added - deleted
    lines = [f"+{added:,} ~{others:,} -{deleted:,}: {texts.summary(changes)}"]
    largest = sorted(changes, key=_weight, reverse=True)[:_MOST_LINES]
    lines += [f"  {text}" for text in texts.lines(largest)]
    compare = f"cowfs diff {before['id'][:8]} {after['id'][:8]}"
    if len(changes) > len(largest):
        lines.append(f"  and {len(changes) - len(largest):,} more; `{compare}` shows all")
    else:
        lines.append(f"`{compare} --patch` shows it line by line")
    return lines


def _weight(change: Change) -> int:
    """Bytes that the change is about."""
    return max(
        (node.size for node in (change.old, change.new) if node and not node.is_dir), default=0
    )
