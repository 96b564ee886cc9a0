"""Runs of automatic checkpoints in `cowfs log`."""

from __future__ import annotations

from dataclasses import replace

from cowfs.cli.folding import fold
from cowfs.format.records import Counts, GitState
from cowfs.service.timeline import Row

HEAD = Row(
    "@",
    99,
    "",
    0,
    "",
    "",
    "head",
    "",
    0,
    0,
    "",
    "",
    Counts(),
    GitState(),
    current=False,
    on_line=True,
)


def history(*kinds: str) -> tuple[Row, list[Row]]:
    """A head, and checkpoints of these kinds in one line, newest first; ids are "0", "1" ..."""
    rows = [
        replace(
            HEAD,
            id=str(at),
            epoch=90 - at,
            parent=str(at + 1) if at + 1 < len(kinds) else None,
            kind=kind.partition(":")[0],
            message=kind.partition(":")[2] or "after a burst: 1 file",
            counts=Counts(1, 2, 3),
            current=at == 0,
        )
        for at, kind in enumerate(kinds)
    ]
    return replace(HEAD, parent="0"), rows


def folded(head: Row, rows: list[Row]) -> list[tuple[str, int]]:
    found = list(fold(head, rows))
    assert sum(count for _, count in found) == len(rows)
    ids = {row.id for row, _ in found}
    assert all(row.parent is None or row.parent in ids for row, _ in found), "a line leads nowhere"
    return [(row.id, count) for row, count in found]


def test_a_run_is_one_line() -> None:
    head, rows = history("manual", "auto", "auto", "auto", "auto", "manual", "start")
    assert folded(head, rows) == [("0", 1), ("1", 4), ("5", 1), ("6", 1)]
    row = next(row for row, count in fold(head, rows) if count == 4)
    assert row.parent == "5"
    assert row.counts == Counts(4, 8, 12)
    assert row.message.startswith("4 automatic, back to 4 ")


def test_two_are_shown() -> None:
    head, rows = history("auto", "auto", "manual", "auto", "start")
    assert folded(head, rows) == [(str(at), 1) for at in range(5)]


def test_what_an_agent_does_for_a_prompt_is_one_line() -> None:
    head, rows = history("turn", "tool", "prompt", "turn", "prompt", "auto", "tool", "start")
    assert folded(head, rows) == [("0", 2), ("2", 1), ("3", 1), ("4", 1), ("5", 2), ("7", 1)]
    (row, count), *_ = fold(head, rows)
    assert (row.kind, row.message[:12], count) == ("auto", "2 automatic,", 2)


def test_the_present_state_may_come_from_the_newest() -> None:
    head, rows = history("auto", "auto", "auto", "start")
    assert folded(head, rows) == [("0", 3), ("3", 1)]
    rows = [replace(row, current=row.id == "1") for row in rows]
    assert folded(head, rows) == [("0", 1), ("1", 1), ("2", 1), ("3", 1)]


def test_what_stood_before_a_big_deletion_is_shown() -> None:
    before = "auto:before a deletion of 50 files"
    head, rows = history("auto", "auto", "auto", before, "auto", "auto", "auto", "start")
    assert folded(head, rows) == [("0", 3), ("3", 1), ("4", 3), ("7", 1)]


def test_where_the_history_parts_is_shown() -> None:
    head, rows = history("auto", "auto", "auto", "auto", "auto", "auto", "start")
    rescue = replace(rows[0], id="r", epoch=95, parent="3", kind="rescue", current=False)
    assert folded(head, [rescue, *rows]) == [("r", 1), ("0", 3), ("3", 3), ("6", 1)]


def test_a_line_stands_for_a_hundred_at_most() -> None:
    head, rows = history(*["auto"] * 250, "start")
    assert folded(head, rows) == [("0", 100), ("100", 100), ("200", 50), ("250", 1)]
