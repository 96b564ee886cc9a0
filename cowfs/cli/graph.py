"""The tree of restores beside the log, drawn in ASCII as `git log --graph` does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def draw(rows: Sequence[tuple[str, str | None, str]]) -> Iterator[tuple[list[str], str]]:
    """For each row (id, parent's id, its mark), newest first: the lines before it, and its own.

    A row that no row above descends from begins a column; columns that lead to the same parent
    join just above it. Parents that are not among the rows leave their columns open.
    """
    columns: list[str] = []
    for row, parent, mark in rows:
        if row not in columns:
            columns.append(row)
        at = columns.index(row)
        joins = []
        while columns.count(row) > 1:
            other = columns.index(row, at + 1)
            joins.append(_join(len(columns), at, other))
            del columns[other]
        yield joins, " ".join(mark if i == at else "|" for i in range(len(columns)))
        if parent is None:
            del columns[at]
        else:
            columns[at] = parent


def _join(count: int, at: int, other: int) -> str:
    """Column `other` ends in column `at`, which is left of it; those right of it move up."""
    line = [" "] * (2 * count - 1)
    for column in range(count):
        if column < other:
            line[2 * column] = "|"
        else:
            line[2 * column - 1] = "/"
    for gap in range(at, other - 1):
        line[2 * gap + 1] = "_"
    return "".join(line).rstrip()
