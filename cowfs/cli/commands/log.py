"""`cowfs log`."""

from __future__ import annotations

import os
import re
import time
from itertools import islice
from typing import Any

import click

from cowfs.cli import context as opening
from cowfs.cli import graph, output
from cowfs.cli.command import FilePath, Session, command, how_many
from cowfs.cli.context import Context
from cowfs.cli.events import describe
from cowfs.cli.folding import fold
from cowfs.client.places import Place
from cowfs.client.rpc import RpcError
from cowfs.errors import CowfsError
from cowfs.format.records import Counts
from cowfs.service.finding.pathlog import PathLog, log_paths, nearest
from cowfs.service.finding.selection import Bound, Selection, bound_of, pattern_of
from cowfs.service.selectors import KINDS
from cowfs.service.sessions.listing import find
from cowfs.service.timeline import Row, Timeline
from cowfs.service.workspace import ReadOnly


@command(
    "log",
    examples=[
        ("cowfs log", "the newest checkpoints"),
        ("cowfs log -n 0", "all of them"),
        ("cowfs log src/cart.py", "those that changed it, through renames"),
        ("cowfs log docs src/old.py", "a directory, and what is gone"),
        ("cowfs log -i --grep 'refactor|tests'", "by message or label"),
        ('cowfs log --since "2 h ago" --kind manual', "by time and kind"),
        ("cowfs log --session last", "of the agent's session that was heard of last"),
        ("cowfs log --json", "for a program"),
    ],
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=FilePath())
@how_many(25, "How many checkpoints")
@click.option("--grep", "pattern", metavar="REGEX", help="Only where message or label match.")
@click.option("-i", "--ignore-case", is_flag=True, help="For --grep.")
@click.option("--since", metavar="WHEN", help="Not older: a checkpoint or a time.")
@click.option("--until", metavar="WHEN", help="Not newer: a checkpoint or a time.")
@click.option("-a", "--all", "every", is_flag=True, help="Automatic ones one by one, too.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(KINDS),
    metavar="KIND",
    help=f"Only of this kind (repeat): {', '.join(KINDS)}.",
)
@click.option("--session", type=Session(), metavar="ID", help="Only of this session of an agent.")
def log(
    context: Context,
    paths: tuple[str, ...],
    limit: int,
    pattern: str | None,
    ignore_case: bool,
    since: str | None,
    until: str | None,
    every: bool,
    kinds: tuple[str, ...],
    session: str | None,
) -> None:
    """List the checkpoints, newest first: id, age, who made it, what it changed (+created
    ~modified -deleted), what it is, and the branch and commit that git was on.

    "@" is the present state and "*" the checkpoint that it is based on. Where restores went back,
    the history is a tree; the lines on the left lead from each state to the one it was made from.
    Runs of automatic checkpoints are one line each, unless --all is given.

    With PATHs only the checkpoints that changed them, and what each did: content, attributes or
    name of a file, anything below a directory. Renames are followed back. A path may be gone.
    """
    place = context.locate_paths(paths)
    damaged: list[str] = []
    wanted = [os.fsencode(context.inside(place, path)) for path in paths]
    found = pattern_of(pattern, ignore_case=ignore_case) if pattern is not None else None
    counts = _live_counts(place)
    with opening.reading(place, need_base=bool(wanted)) as workspace:
        selection = _selection(workspace, found, kinds, since, until, session)
        line = Timeline(workspace, damaged.append, counts)
        if wanted:

            def cannot_compare(epoch: int) -> None:
                record = line.states.checkpoint(epoch)
                damaged.append(record.id if record else "@")

            told = log_paths(
                line, list(dict.fromkeys(wanted)), limit or None, selection, cannot_compare
            )
            _tell_paths(context, line, told, damaged, several=len(wanted) > 1)
            return
        folded = not (every or context.json)
        head, shown, total = _rows(line, selection, limit, folded=folded)
    _tell(context, head, shown, total, damaged, selection)


def _live_counts(place: Place) -> Counts | None:
    """What the open epoch changed, as the daemon counts it; None when it cannot be asked."""
    try:
        daemon = opening.connect(place)
        if daemon is None:
            return None
        with daemon:
            return Counts(**daemon.call("status", {"flush": True})["changes"])
    except (CowfsError, RpcError):
        return None


def _selection(
    workspace: ReadOnly,
    pattern: re.Pattern[str] | None,
    kinds: tuple[str, ...],
    since: str | None,
    until: str | None,
    session: str | None,
) -> Selection:
    now = time.time_ns()
    return Selection(
        pattern,
        kinds,
        bound_of(workspace, since, now, earliest=True) if since is not None else Bound(),
        bound_of(workspace, until, now, earliest=False) if until is not None else Bound(),
        find(workspace.reader, session).id if session is not None else "",
    )


def _rows(
    line: Timeline, selection: Selection, limit: int, *, folded: bool
) -> tuple[Row, list[Row], int]:
    """The head's row, those to show, and how many there are, counting what is folded as one."""
    head = line.head()
    if selection.is_all:
        total = line.workspace.reader.count("checkpoint")
        if folded:
            found = list(islice(fold(head, line.checkpoints()), limit or None))
            more = sum(count - 1 for _, count in found)
            return head, [row for row, _ in found], total - more
        return head, list(islice(line.checkpoints(), limit or None)), total
    epochs = [r.epoch for r in line.states.newest_first() if selection.has(r)]
    rows = [row for epoch in epochs[: limit or None] if (row := line.row(epoch))]
    parents = nearest(line, rows)
    return head, [row.with_parent(p) for row, p in zip(rows, parents, strict=True)], len(epochs)


def _tell(
    context: Context,
    head: Row,
    shown: list[Row],
    total: int,
    damaged: list[str],
    selection: Selection,
) -> None:
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
    rows = [head, *shown] if selection.is_all else shown
    for line in _table(rows, [_numbers(row) for row in rows], time.time_ns()):
        output.text(line)
    if len(shown) < total:
        output.text(f"… and {total - len(shown):,} older (cowfs log -n 0 shows all)")
    _tell_damaged(damaged)


def _tell_paths(
    context: Context, line: Timeline, told: PathLog, damaged: list[str], *, several: bool
) -> None:
    heads = [row for row in told.rows if row.row.kind == "head"]
    shown = [row for row in told.rows if row.row.kind != "head"]
    if context.json:
        output.document(
            {
                "checkpoints": [
                    {**row.row.to_json(), "events": [_event(*item) for item in row.events]}
                    for row in shown
                ],
                "head": line.head().to_json(),
                "head_events": [_event(*item) for row in heads for item in row.events],
                "more": told.more,
                "at_start": {
                    os.fsdecode(path) or ".": [os.fsdecode(found) or "." for found in places]
                    for path, places in told.at_start.items()
                },
                "gone": [os.fsdecode(path) for path in told.gone],
                "damaged": damaged,
            }
        )
        return
    rows = [row.row for row in told.rows]
    texts = [
        "; ".join(describe(path, event, several=several) for path, event in row.events)
        for row in told.rows
    ]
    for text in _table(rows, texts, time.time_ns()):
        output.text(text)
    if told.more:
        output.text("… and older ones (cowfs log -n 0 shows all)")
    for path, places in told.at_start.items():
        other = "" if path in places else f", as {_text(places[0])}"
        output.text(f"{_text(path)} was there at the start{other}")
    for path in told.gone:
        output.text(f"{_text(path)} is not there now")
    if not rows and not told.more and not told.at_start:
        output.text("no checkpoint changed it")
    _tell_damaged(damaged)


def _event(path: bytes, event: Any) -> dict[str, Any]:
    return {"asked": os.fsdecode(path) or ".", **event.to_json()}


def _text(path: bytes) -> str:
    return output.printable(os.fsdecode(path)) or "."


def _tell_damaged(damaged: list[str]) -> None:
    for name in damaged:
        output.note(f"checkpoint {name[:8]} is damaged; `cowfs verify` says what is hit")


def _table(rows: list[Row], changes: list[str], now: int) -> list[str]:
    """The lines of the log. changes: what to say of what each row changed."""
    if not rows:
        return []
    tree = list(graph.draw([(row.id, row.parent, _mark(row)) for row in rows]))
    cells = [_cells(row, text, now) for row, text in zip(rows, changes, strict=True)]
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


def _numbers(row: Row) -> str:
    counts = row.counts
    return f"+{counts.created} ~{counts.modified} -{counts.deleted}"


def _cells(row: Row, changes: str, now: int) -> list[str]:
    if row.kind == "head":
        return ["now", "", "", changes, ""]
    what = [] if row.kind == "manual" else [f"[{row.kind}]"]
    if row.label:
        what.append(f"({row.label})")
    if row.pinned:
        what.append("[pinned]")
    if row.thinned:
        what.append("[thinned]")
    what.append(row.message.partition("\n")[0])
    if row.git.commit:
        what.append(f"({row.git.branch} {row.git.commit[:7]})".replace("( ", "("))
    return [
        row.id[:8],
        output.age(row.time, now),
        output.printable(row.user),
        changes,
        output.printable(" ".join(what)),
    ]
