"""`cowfs forget`, `cowfs pin`, `cowfs unpin`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import Checkpoint, command
from cowfs.cli.commands.gc import checkpoint_line
from cowfs.cli.context import Context


@command(
    "forget",
    examples=[
        ("cowfs forget d13d24d7", "remove one checkpoint"),
        ("cowfs forget wrong-turn 64bb", "several, by label or id"),
        ("cowfs forget @~1 && cowfs gc --no-policy", "and free its room at once"),
    ],
)
@click.argument("checkpoints", metavar="CHECKPOINT...", nargs=-1, required=True, type=Checkpoint())
def forget(context: Context, checkpoints: tuple[str, ...]) -> None:
    """Remove checkpoints from the history. This cannot be undone.

    What other checkpoints and the present state show does not change. The room is freed in the
    background, or by `cowfs gc`. A pinned one is refused, and so is the state before the first
    mount.
    """
    place = context.locate()
    daemon = opening.connect(place)
    if daemon is not None:
        with daemon:
            done = daemon.call("forget", {"checkpoints": list(checkpoints)})
    else:
        from cowfs.service.housekeeping import described
        from cowfs.service.removing import forget as remove

        with opening.writing(place) as engine:
            gone = remove(engine, nullcontext(), list(checkpoints))
            done = {"removed": [described(record) for record in gone]}
    rows = [checkpoint_line(row) for row in done["removed"]]
    lines = [f"removed {output.plural(len(rows), 'checkpoint')}", *rows]
    context.answer(done, "\n".join(output.printable(line) for line in lines))


@command(
    "pin",
    examples=[
        ("cowfs pin @~1", "the last checkpoint is never removed by itself"),
        ("cowfs pin v1 --note 'what the customer has'", "and why"),
    ],
)
@click.argument("checkpoint", type=Checkpoint())
@click.option("--note", default="", metavar="TEXT", help="Why it is kept.")
def pin(context: Context, checkpoint: str, note: str) -> None:
    """Keep a checkpoint whatever the rules of retention say, also when the quota is full."""
    _pin(context, checkpoint, pinned=True, note=output.valid(note))


@command("unpin", examples=[("cowfs unpin v1", "the rules of retention apply to it again")])
@click.argument("checkpoint", type=Checkpoint())
def unpin(context: Context, checkpoint: str) -> None:
    """Let the rules of retention apply to a checkpoint again."""
    _pin(context, checkpoint, pinned=False, note="")


def _pin(context: Context, checkpoint: str, *, pinned: bool, note: str) -> None:
    place = context.locate()
    daemon = opening.connect(place)
    done: dict[str, Any]
    if daemon is not None:
        with daemon:
            params = {"checkpoint": checkpoint, "pinned": pinned, "note": note}
            done = daemon.call("pin", params)
    else:
        from cowfs.format import records
        from cowfs.service import removing

        with opening.writing(place) as engine:
            record = removing.pin(engine, nullcontext(), checkpoint, pinned=pinned, note=note)
            done = {"checkpoint": records.to_dict(record)}
    word = "pinned" if pinned else "not pinned any more"
    lines = [f"checkpoint {done['checkpoint']['id'][:8]} is {word}"]
    if pinned and (thinned := done["checkpoint"]["thinned"]):
        lines.append(f"of volatile paths ({', '.join(thinned)}) it does not have all contents")
    context.answer(done, "\n".join(output.printable(line) for line in lines))
