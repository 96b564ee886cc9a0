"""`cowfs sessions` and `cowfs session`: the sessions of agents."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import FilePath, Session, command, group
from cowfs.cli.context import Context
from cowfs.cli.continuing import first_line
from cowfs.errors import NotMountedError, UsageError

if TYPE_CHECKING:
    from cowfs.format.records import CheckpointRecord
    from cowfs.service.sessions.listing import Listed

_ENDED_SHOWN = 10
"""Sessions that have ended of which `cowfs sessions` tells without --all."""
_CHECKPOINTS_SHOWN = 20
_TEXT = 60
_SHORTEST = 8
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@command(
    "sessions",
    examples=[
        ("cowfs sessions", "who works here, and what was interrupted"),
        ("cowfs sessions --all", "those that ended long ago, too"),
        ("cowfs resume 5f0c", "go on with one of them"),
    ],
)
@click.option("--all", "every", is_flag=True, help="All that are stored.")
def sessions(context: Context, every: bool) -> None:
    """List the sessions of agents, the one that was heard of last first, with their sub-agents.

    A session is active while its process runs; it has ended when the agent said so; it was
    interrupted when its process is gone without that: after a crash, a kill or a reboot. `cowfs
    resume` goes on with such a one.
    """
    from cowfs.service.sessions.listing import listed

    place = context.locate()
    with opening.reading(place, need_base=False) as workspace:
        found = listed(workspace.reader)
    ended = [row for row in found if row.state == "ended" and row.record.origin == ""]
    hidden = set() if every else {row.record.id for row in ended[_ENDED_SHOWN:]}
    shown = [row for row in found if row.record.id not in hidden]
    document = {
        "sessions": [row.to_json() for row in shown],
        "total": len(found),
        "interrupted": [row.record.id for row in found if row.is_offered],
    }
    context.answer(document, "\n".join(_table(shown, len(hidden))))


def _table(rows: Sequence[Listed], hidden: int) -> list[str]:
    if not rows:
        return ["no agent's session is known (`cowfs hooks install`, `cowfs session start`)"]
    now, names = time.time_ns(), short_names([row.record.id for row in rows])
    cells = []
    for row in rows:
        cells.append(_cells(row, names[row.record.id], now))
        cells += _below(row, now, "  ")
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]) - 1)]
    lines = []
    for line in cells:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        lines.append("  ".join([*padded, line[-1]]).rstrip())
    if hidden:
        lines.append(f"… and {hidden:,} that ended before (cowfs sessions --all)")
    lines += [
        f"interrupted: `cowfs resume {names[row.record.id]}` goes on with it"
        for row in rows
        if row.is_offered
    ]
    return lines


def _cells(row: Listed, name: str, now: int) -> list[str]:
    record = row.record
    what = record.title or first_line(record.prompt, _TEXT)
    if record.origin:
        what = f"(a copy of {record.origin[:_SHORTEST]}) {what}"
    return [
        name,
        output.printable(record.agent),
        row.state,
        output.age(record.last, now),
        output.plural(row.checkpoints, "checkpoint"),
        output.printable(what),
    ]


def _below(row: Listed, now: int, margin: str) -> list[list[str]]:
    """The rows of the sub-agents."""
    found = []
    for below in row.subagents:
        name = margin + output.printable(below.record.id.partition("/")[2])
        cells = _cells(below, name, now)
        cells[1] = output.printable(below.record.kind or below.record.agent)
        found += [cells, *_below(below, now, margin + "  ")]
    return found


def short_names(ids: Iterable[str]) -> dict[str, str]:
    """The shortest beginning of each id that is its own, of at least 8 characters."""
    known = sorted(ids)
    found = {}
    for at, name in enumerate(known):
        length = _SHORTEST
        for other in (*known[max(at - 1, 0) : at], *known[at + 1 : at + 2]):
            while length < len(name) and other.startswith(name[:length]):
                length += 1
        found[name] = name[:length]
    return found


@group(
    "session",
    examples=[
        ("cowfs session start --agent mybot", "from now on checkpoints can belong to it"),
        ("cowfs session show last", "what is known of one"),
        ("cowfs session end", "of that in $COWFS_SESSION"),
    ],
)
def session() -> None:
    """Tell of a session of an agent that has no hooks, or look at one."""


@command(
    "start",
    examples=[
        ("cowfs session start --agent mybot --transcript log.jsonl", "keep what it writes there"),
        ("export COWFS_SESSION=$(cowfs session start --agent mybot)", "for the commands to come"),
    ],
)
@click.option("--agent", required=True, metavar="NAME", help="Who it is: a word.")
@click.option(
    "--transcript",
    type=FilePath(),
    metavar="PATH",
    help="The file of the conversation. What is added to it is stored with each checkpoint.",
)
@click.option("--title", default="", metavar="TEXT", help="What it is about.")
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    metavar="PID",
    help="The agent's process: when it is gone without `session end`, it was interrupted.",
)
@click.option(
    "--id",
    "name",
    metavar="ID",
    help="The agent's own id of it; by default the one in the transcript's name, or a new one.",
)
def start(
    context: Context,
    agent: str,
    transcript: str | None,
    title: str,
    pid: int | None,
    name: str | None,
) -> None:
    """Begin a session, and print its id. Put it into COWFS_SESSION for later commands."""
    path = context.path(transcript) if transcript is not None else ""
    event = {
        "event": "session-start",
        "agent": agent,
        "session": name or _id_in(path) or str(uuid.uuid4()),
        "transcript": path,
        "title": output.valid(title),
        "pid": pid or 0,
        "cwd": context.directory,
        "source": "cowfs session start",
    }
    told = _tell(context, event)
    context.answer({"session": told["session"]}, told["session"])


def _id_in(path: str) -> str:
    """The last UUID in the name of a transcript, "" if there is none."""
    found = _UUID.findall(os.path.basename(path))
    return found[-1] if found else ""


@command(
    "end",
    examples=[
        ("cowfs session end", "of the session in $COWFS_SESSION"),
        ("cowfs session end 5f0c --reason done", "of another one"),
    ],
)
@click.argument("name", metavar="[SESSION]", type=Session(), required=False)
@click.option("--reason", default="", metavar="TEXT", help="Why it ended.")
def end(context: Context, name: str | None, reason: str) -> None:
    """End a session.

    What its conversation has now is stored, with a checkpoint.
    """
    from cowfs.service.sessions.listing import find

    name = name or os.environ.get("COWFS_SESSION")
    if not name:
        detail = "name a session, here or in COWFS_SESSION"
        raise UsageError(detail=detail, command="session end")
    with opening.reading(context.locate(), need_base=False) as workspace:
        record = find(workspace.reader, name)
    if record.parent:
        raise UsageError(detail=f"{name} is a sub-agent", command="session end")
    event = {
        "event": "session-end",
        "agent": record.agent,
        "session": record.id,
        "cwd": context.directory,
        "reason": output.valid(reason),
    }
    told = _tell(context, event)
    point = told.get("checkpoint")
    made = f"; checkpoint {point['id'][:8]}" if point else ""
    context.answer(told, f"session {record.id} has ended{made}")


def _tell(context: Context, event: dict[str, Any]) -> dict[str, Any]:
    """Tell the daemon of an event. Raises NotMountedError, RpcError."""
    place = context.locate()
    daemon = opening.connect(place)
    if daemon is None:
        raise NotMountedError(path=place.base)
    with daemon:
        answer: dict[str, Any] = daemon.call("session.event", event)
        return answer


@command(
    "show",
    examples=[
        ("cowfs session show last", "the one that was heard of last"),
        ("cowfs session show 5f0c --json", "for a program"),
    ],
)
@click.argument("name", metavar="SESSION", type=Session())
def show(context: Context, name: str) -> None:
    """Show a session, its sub-agents and its checkpoints."""
    from cowfs.format import records
    from cowfs.service.sessions.listing import checkpoints_of, find, listed

    with opening.reading(context.locate(), need_base=False) as workspace:
        record = find(workspace.reader, name)
        row = _found(listed(workspace.reader), record.id)
        points = list(islice(checkpoints_of(workspace.reader, record.id), _CHECKPOINTS_SHOWN))
    document = {
        "session": row.to_json(),
        "checkpoints": [records.to_dict(point) for point in points],
    }
    context.answer(document, "\n".join(map(output.printable, _shown(row, points))))


def _found(rows: Iterable[Listed], name: str) -> Listed:
    """The row of a session that is among some or below them."""
    for row in rows:
        if row.record.id == name:
            return row
        if name.startswith(row.record.id + "/"):
            below = [row, *row.subagents]
            while below:
                candidate = below.pop()
                if candidate.record.id == name:
                    return candidate
                below += candidate.subagents
    raise AssertionError(f"session {name} is not among those that there are")


def _shown(row: Listed, points: Sequence[CheckpointRecord]) -> list[str]:
    record, now = row.record, time.time_ns()
    state = row.state
    if record.reason:
        state += f" ({record.reason})"
    fields = [
        ("agent", f"{record.agent} {record.version}".rstrip()),
        ("kind", record.kind),
        ("state", state),
        ("title", record.title),
        ("started", output.age(record.started, now)),
        ("last", output.age(record.last, now)),
        ("user", record.user),
        ("process", str(record.pid) if record.pid else ""),
        ("directory", os.fsdecode(record.cwd)),
        ("transcript", os.fsdecode(record.transcript)),
        ("prompt", first_line(record.prompt, _TEXT)),
        ("copy of", record.origin),
        ("copies", ", ".join(row.copies)),
    ]
    lines = [f"session {record.id}"]
    lines += [f"  {name:<11} {value}" for name, value in fields if value]
    if row.subagents:
        lines.append("sub-agents")
        lines += ["  " + "  ".join(cells).rstrip() for cells in _below(row, now, "")]
    if points:
        more = f", the newest {len(points)}" if row.checkpoints > len(points) else ""
        lines.append(f"{output.plural(row.checkpoints, 'checkpoint')}{more}")
    for point in points:
        what = first_line(point.message, _TEXT)
        lines.append(f"  {point.id[:8]}  {output.age(point.time, now)}  [{point.kind}] {what}")
    if row.is_offered:
        lines.append(f"it was interrupted: `cowfs resume {record.id}` goes on with it")
    return lines


for _command in (start, end, show):
    session.add_command(_command)
