"""Runs of automatic checkpoints as one line of `cowfs log`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cowfs.format.records import Counts
from cowfs.service.automatic import is_notable
from cowfs.service.selectors import AUTOMATIC
from cowfs.service.timeline import Row

_FEWEST = 3
_FEWEST_OF_AGENT = 2
"""There are some for each prompt."""
_MOST = 100
"""In one line: a long history is not read for a few of them."""


def fold(head: Row, rows: Iterable[Row]) -> Iterator[tuple[Row, int]]:
    """(row, how many checkpoints it stands for), from rows newest first.

    Folded is what nobody looks for by itself: automatic checkpoints, and those at the tool calls,
    sub-agents and ends of turns of an agent, each made from the one after it and from nothing else,
    but for those before a big deletion. The row is that of the newest.
    """
    children = Counter([head.parent])
    run: list[Row] = []
    for row in rows:
        plain = (
            row.kind != "head"
            and not is_notable(row.kind, row.message)
            and not row.label
            and not row.pinned
        )
        goes_on = run and run[-1].parent == row.id and children[row.id] == 1 and not row.current
        if not (plain and goes_on and len(run) < _MOST):
            yield from _folded(run)
            run = []
        children[row.parent] += 1
        if plain:
            run.append(row)
        else:
            yield row, 1
    yield from _folded(run)


def _folded(run: list[Row]) -> Iterator[tuple[Row, int]]:
    by_agent = any(row.kind != AUTOMATIC for row in run)
    if len(run) < (_FEWEST_OF_AGENT if by_agent else _FEWEST):
        yield from ((row, 1) for row in run)
        return
    counts = Counts(
        sum(row.counts.created for row in run),
        sum(row.counts.modified for row in run),
        sum(row.counts.deleted for row in run),
    )
    message = f"{len(run)} automatic, back to {run[-1].id[:8]} (cowfs log --all)"
    folded = replace(run[0], parent=run[-1].parent, counts=counts, message=message, kind=AUTOMATIC)
    yield folded, len(run)
