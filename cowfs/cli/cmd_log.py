"""`cowfs log`."""

from __future__ import annotations

import time

import click

from cowfs.cli import context as opening
from cowfs.cli import graph, output
from cowfs.cli.command import command
from cowfs.cli.context import Context
from cowfs.service.timeline import Row, timeline


@command(
    "log",
    examples=[
        ("cowfs log", "the newest checkpoints"),
        ("cowfs log -n 0", "all of them"),
        ("cowfs log --json", "for a program"),
    ],
)
@click.option(
    "-n",
    "limit",
    type=click.IntRange(min=0),
    default=25,
    show_default=True,
    metavar="N",
    help="How many checkpoints; 0 is all.",
)
def log(context: Context, limit: int) -> None:
    """List the checkpoints, newest first: id, age, who made it, what it changed (+created
    ~modified -deleted), what it is, and the branch and commit that git was on.

    "@" is the present state and "*" the checkpoint that it is based on. Where restores went back,
    the history is a tree; the lines on the left lead from each state to the one it was made from.
    """
    damaged: list[str] = []
    with opening.reading(context.locate(), need_base=False) as workspace:
        head, *shown = timeline(workspace, limit or None, damaged.append)
        total = workspace.reader.count("checkpoint")
    if context.json:
        output.document(
            {
                "checkpoints": [row.to_json() for row in shown],
                "head": head.to_json(),
                "total": total,
                "damaged": damaged,
            }
        )
        return
    for line in _table([head, *shown], time.time_ns()):
        output.text(line)
    if len(shown) < total:
        output.text(f"… and {total - len(shown):,} older (cowfs log -n 0 shows all)")
    for name in damaged:
        output.note(f"checkpoint {name[:8]} is damaged; `cowfs verify` says what is hit")


def _table(rows: list[Row], now: int) -> list[str]:
    tree = list(graph.draw([(row.id, row.parent, _mark(row)) for row in rows]))
    cells = [_cells(row, now) for row in rows]
    margin = max(len(own) for _, own in tree)
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]) - 1)]
    lines = []
    for (joins, own), row in zip(tree, cells, strict=True):
        lines += joins
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([own.ljust(margin), *padded, row[-1]]).rstrip())
    return lines


def _mark(row: Row) -> str:
    if row.kind == "head":
        return "@"
    return "*" if row.current else "o"


def _cells(row: Row, now: int) -> list[str]:
    counts = row.counts
    numbers = f"+{counts.created} ~{counts.modified} -{counts.deleted}"
    if row.kind == "head":
        return ["now", "", "", numbers, ""]
    what = [] if row.kind == "manual" else [f"[{row.kind}]"]
    if row.label:
        what.append(f"({row.label})")
    what.append(row.message.partition("\n")[0])
    if row.git.commit:
        what.append(f"({row.git.branch} {row.git.commit[:7]})".replace("( ", "("))
    return [
        row.id[:8],
        output.age(row.time, now),
        output.printable(row.user),
        numbers,
        output.printable(" ".join(what)),
    ]
