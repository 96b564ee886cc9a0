"""`cowfs blame`."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import FilePath, command
from cowfs.cli.context import Context
from cowfs.service.audit.blame import Line, Version, lines, versions
from cowfs.service.audit.stories import name_of


@command(
    "blame",
    examples=[
        ("cowfs blame src/cart.py", "which checkpoint has its last change, and who made it"),
        ("cowfs blame --lines src/cart.py", "the same of each line"),
    ],
)
@click.argument("path", type=FilePath())
@click.option("--lines", "by_line", is_flag=True, help="Of each line of a text file.")
def blame(context: Context, path: str, by_line: bool) -> None:
    """Say which checkpoint and which process last changed a file, or each of its lines.

    "@" is the present state, since the last checkpoint. Renames are followed, and files that were
    replaced by new ones of their name.
    """
    place = context.locate_paths([path])
    inside = os.fsencode(context.inside(place, path))
    now = time.time_ns()
    with opening.reading(place) as workspace:
        if by_line:
            told = lines(workspace, inside)
            document = {"path": os.fsdecode(inside), "lines": [_line_json(line) for line in told]}
            context.answer(document, "\n".join(_table(told, now)))
            return
        version = next(versions(workspace, inside))
        context.answer(
            {"path": os.fsdecode(inside), **_json(version)},
            output.printable(f"{_checkpoint(version)}  {_age(version, now)}  {_who(version)}"),
        )


def _json(version: Version) -> dict[str, Any]:
    return {
        "checkpoint": version.checkpoint.id if version.checkpoint else "@",
        "epoch": version.epoch,
        "time": version.time,
        "old_path": os.fsdecode(version.path),
        "process": version.process.to_json() if version.process else None,
    }


def _line_json(line: Line) -> dict[str, Any]:
    return {**_json(line.version), "text": os.fsdecode(line.text.rstrip(b"\n"))}


def _checkpoint(version: Version) -> str:
    return version.checkpoint.id[:8] if version.checkpoint else "@".ljust(8)


def _age(version: Version, now: int) -> str:
    return output.age(version.time, now)


def _who(version: Version) -> str:
    if version.process is not None:
        return name_of(version.process)
    return "before the first mount" if not version.epoch else "not known who"


def _table(told: list[Line], now: int) -> list[str]:
    cells = [(_checkpoint(x.version), _age(x.version, now), _short(x.version)) for x in told]
    age = max((len(row[1]) for row in cells), default=0)
    who = max((len(row[2]) for row in cells), default=0)
    digits = len(str(len(told)))
    return [
        output.printable(f"{one}  {two:<{age}}  {three:<{who}}  {at:>{digits}}  ")
        + output.printable(os.fsdecode(line.text.rstrip(b"\n")).replace("\t", "    "))
        for at, (line, (one, two, three)) in enumerate(zip(told, cells, strict=True), start=1)
    ]


def _short(version: Version) -> str:
    name = _who(version)
    return name if len(name) <= 32 else name[:31] + "…"
