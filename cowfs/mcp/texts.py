"""Results as text for a model: one thing a line, as short as it stays clear.

Threading: pure functions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from cowfs.api.results import Activity, Change, Checkpoint, Counts, Restored, Status

MOST_BYTES = 20_000
"""Of one answer. Clients limit answers in tokens (Claude Code: 25,000), and a token has at least
one byte."""


def page(text: str, offset: int, *, more: bool = False) -> str:
    """The part of a text that begins at a character, with what to say of the rest. more: what was
    read of it is not all."""
    text = text.encode("utf-8", "backslashreplace").decode()
    rest = text[offset:]
    piece = rest.encode()[:MOST_BYTES].decode("utf-8", "ignore")
    if len(piece) == len(rest) and not more:
        return piece if piece or not offset else f"(nothing after character {len(text):,})"
    end = piece.rfind("\n") + 1
    if end > len(piece) // 2:
        piece = piece[:end]
    to = offset + len(piece)
    of = "" if more else f" of {len(text):,}"
    gap = "" if piece.endswith("\n") else "\n"
    return f"{piece}{gap}[characters {offset:,} to {to:,}{of}; go on with offset={to}]"


def name(path: str) -> str:
    """A path on one line: its control characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in path)


def moment(time_ns: int) -> str:
    """In local time, as selectors take it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns / 1e9))


def numbers(counts: Counts) -> str:
    """ "+1 ~2 -0": created, modified, deleted."""
    return f"+{counts.created} ~{counts.modified} -{counts.deleted}"


def checkpoint(row: Checkpoint) -> str:
    """ "64bb4b41  2026-11-30 10:41:02  manual  +1 ~2 -0  (label) message"."""
    label = f"({row.label}) " if row.label else ""
    about = name(f"{label}{row.message.partition(chr(10))[0][:200]}")
    return f"{row.id[:8]}  {moment(row.time)}  {row.kind}  {numbers(row.counts)}  {about}".rstrip()


def log(rows: Sequence[Checkpoint], limit: int) -> str:
    """The first `limit` of them, or as many as one answer takes, and how to see those after."""
    lines, size = [], 0
    for row in rows[:limit]:
        line = checkpoint(row)
        size += len(line.encode("utf-8", "backslashreplace")) + 1
        if size > MOST_BYTES:
            break
        lines.append(line)
    if len(lines) < len(rows):
        lines.append(f"[there are older ones: go on with before={rows[len(lines) - 1].id[:8]}]")
    return "\n".join(lines) or "no checkpoints"


def change(row: Change) -> str:
    """ "R  docs/a.md -> docs/b.md  (modified, mode)  +3 -1"."""
    path = name(row.path)
    if row.old_path is not None:
        path = f"{name(row.old_path)} -> {path}"
    file = row.new or row.old
    if file is not None and file.type == "directory":
        path += "/"
    remarks = list(row.attributes)
    if row.status == "R" and row.modified:
        remarks.insert(0, "modified")
    if row.link_of is not None:
        remarks.append(f"a hard link of {name(row.link_of)}")
    text = f"{row.status}  {path}"
    if remarks:
        text += f"  ({', '.join(remarks)})"
    if row.added or row.removed:
        text += f"  +{row.added} -{row.removed}"
    return text


def changes(rows: Iterable[Change]) -> str:
    """One line for each."""
    return "\n".join(change(row) for row in rows)


def activity(row: Activity) -> str:
    """ "2026-11-30 10:41:02  bash `rm docs/b.md` removed docs/b.md"."""
    mark = "[outside] " if row.outside else ""
    return f"{moment(row.until)}  {mark}{name(row.text)}"


def restored(row: Restored) -> str:
    """What was done, and how to take it back."""
    lines = [
        f"restored {row.checkpoint.id[:8]}: {row.changed} things changed",
        f"the state before is checkpoint {row.rescue.id[:8]}; restoring that one takes it back",
    ]
    if row.left_alone:
        lines.append(f"volatile, left alone: {', '.join(map(name, row.left_alone))}")
    return "\n".join(lines)


def status(row: Status) -> str:
    """Where it is, and how."""
    last = checkpoint(row.last_checkpoint) if row.last_checkpoint else "none"
    lines = [
        f"workspace: {name(row.base)}",
        f"mounted: {f'at {name(row.mountpoint)}' if row.mounted else 'no'}",
        f"last checkpoint: {last}",
        f"since then: {numbers(row.counts)} (files created, modified, deleted)",
        f"health: {row.health}",
    ]
    lines += [f"  {name(problem)}" for problem in row.problems]
    return "\n".join(lines)
