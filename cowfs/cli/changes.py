"""Lists of changes as text."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from cowfs.cli import output
from cowfs.service.diff import STATUSES, Change, count
from cowfs.service.textdiff import Stat

_BAR = 30


def name(path: bytes) -> str:
    """A path of the workspace as it is printed."""
    return output.printable(os.fsdecode(path)) or "."


def _names(change: Change) -> str:
    if change.old_path is None:
        return name(change.path)
    return f"{name(change.old_path)} -> {name(change.path)}"


def _remarks(change: Change) -> str:
    remarks = list(change.attributes)
    if change.status == "R" and change.modified:
        remarks.insert(0, "modified")
    if change.link_of is not None:
        remarks.append(f"a hard link of {name(change.link_of)}")
    return f"  ({', '.join(remarks)})" if remarks else ""


def lines(changes: Iterable[Change]) -> list[str]:
    """One line for each change: its letter, its path, what is special."""
    return [f"{c.status}  {_names(c)}{'/' * c.node.is_dir}{_remarks(c)}" for c in changes]


def summary(changes: Sequence[Change]) -> str:
    """ "3 added, 1 renamed"."""
    counts = count(changes)
    parts = [f"{counts[word]:,} {_WORDS.get(word, word)}" for word in counts if counts[word]]
    return ", ".join(parts) or "no changes"


_WORDS = {STATUSES["P"]: "with other attributes", STATUSES["T"]: "with another type"}


def table(rows: Sequence[tuple[Change, Stat]]) -> list[str]:
    """Path, lines and a bar for each change, as `git diff --stat` shows it; a sum at the end."""
    labels = [_names(change) for change, _ in rows]
    width = min(max(map(len, labels), default=0), 60)
    most = max((_lines(stat) for _, stat in rows), default=0)
    out = []
    for label, (change, stat) in zip(labels, rows, strict=True):
        out.append(f" {label.ljust(width)} | {_amount(change, stat, most)}".rstrip())
    added = sum(stat.added or 0 for _, stat in rows)
    removed = sum(stat.removed or 0 for _, stat in rows)
    total = summary([change for change, _ in rows])
    out.append(f"{total}; {output.plural(added, 'line')} added, {removed:,} removed")
    return out


def _lines(stat: Stat) -> int:
    return (stat.added or 0) + (stat.removed or 0)


def _amount(change: Change, stat: Stat, most: int) -> str:
    if change.node.is_dir:
        return f"{STATUSES[change.status]} directory"
    if stat.binary:
        return f"binary {output.size(stat.old_size)} -> {output.size(stat.new_size)}"
    if not _lines(stat):
        return _remarks(change).strip(" ()") or STATUSES[change.status]
    scale = min(1.0, _BAR / most)
    plus = -(-(stat.added or 0) * scale // 1)
    minus = -(-(stat.removed or 0) * scale // 1)
    return f"{_lines(stat):>5} {'+' * int(plus)}{'-' * int(minus)}"
