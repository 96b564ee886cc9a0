"""`cowfs find`."""

from __future__ import annotations

import os
import shlex
import time
from itertools import islice
from typing import Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import command, how_many
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.client import places
from cowfs.client.places import Place
from cowfs.client.rpc import RpcError
from cowfs.errors import CowfsError, NameNotFoundError
from cowfs.service.audit.stories import name_of
from cowfs.service.finding.names import Finder, Found, Pattern
from cowfs.service.states import States


@command(
    "find",
    examples=[
        ("cowfs find cart.py", "where it is, or was, and how to get it back"),
        ("cowfs find 'test_*.py' --deleted", "only what is gone"),
        ("cowfs find 'src/*.py'", "the end of a path"),
        ("cowfs find cart.py --json", "for a program"),
    ],
)
@click.argument("name", metavar="NAME")
@click.option("--deleted", is_flag=True, help="Only files that are not there any more.")
@how_many(100)
def find(context: Context, name: str, deleted: bool, limit: int) -> None:
    """Find files by name, in the present state and in every checkpoint.

    NAME is a name or the end of a path, with * ? [] if wanted; a path from here if it begins with
    / ./ or ../. For each file that is gone: the last
    checkpoint that has it, and the command that brings it back. First those that went last.
    """
    is_path = name.startswith(("/", "./", "../"))
    place = context.locate_paths([name] if is_path else [])
    pattern = Pattern(os.fsencode(context.inside(place, name) if is_path else name))
    incomplete = _is_incomplete(place)
    with opening.reading(place, need_base=False) as workspace, ProgressLine() as line:

        def progress(names: int) -> None:
            line.show(f"searching: {output.plural(names, 'name')}")

        finder = Finder(workspace, States(workspace.reader, workspace.branch.head))
        stream = finder.find(pattern, deleted=deleted, progress=progress)
        found = list(islice(stream, limit or None))
        more = next(stream, None) is not None
        line.clear()
        if not found:
            raise NameNotFoundError(name=name, gone=" and is gone" if deleted else "")
        _tell(context, place, found, more, finder.damaged, incomplete)


def _is_incomplete(place: Place) -> bool:
    """Whether there may be base directories that nobody looked into yet."""
    try:
        daemon = opening.connect(place)
        if daemon is None:
            return True
        with daemon:
            return not daemon.call("status")["import"]["complete"]
    except (CowfsError, RpcError):
        return True


def _tell(
    context: Context, place: Place, found: list[Found], more: bool, damaged: int, incomplete: bool
) -> None:
    rows = [_row(context, place, one) for one in found]
    if context.json:
        output.document(
            {"found": rows, "more": more, "damaged": damaged, "complete": not incomplete}
        )
        return
    now = time.time_ns()
    width = max(len(_text(one.path)) for one in found)
    for one, row in zip(found, rows, strict=True):
        size = output.size(one.node.size) if one.node.is_file else one.node.kind
        about = f"{_text(one.path).ljust(min(width, 60))}  {size:>10}  {_when(one, now)}"
        output.text(about)
        if row["command"]:
            output.text(f"    {row['command']}")
    if more:
        output.text("… and more (cowfs find -n 0 shows all)")
    if damaged:
        output.note(f"{damaged:,} names are damaged; `cowfs verify` says what is hit")
    if incomplete:
        output.note("directories that nobody looked into yet were not searched")


def _when(one: Found, now: int) -> str:
    last = one.checkpoint
    if last is None:
        text = "is there"
    elif one.moved_to:
        text = f"is {' and '.join(map(_text, one.moved_to))} now, was here in {last.id[:8]}"
    else:
        text = f"gone, last in {last.id[:8]} ({output.age(last.time, now)})"
        if one.removal is not None:
            who = output.printable(name_of(one.removal.process))
            text += f", removed by {who} ({output.age(one.removal.time, now)})"
    if one.earlier:
        text += f"; another file in {one.earlier[0].id[:8]}"
    return text


def _row(context: Context, place: Place, one: Found) -> dict[str, Any]:
    row = one.to_json()
    last = one.checkpoint
    row["command"] = row["show_command"] = None
    if last is not None:
        path = _quoted(_from_here(context, place, os.fsdecode(one.path)))
        start = _start(context, place)
        row["command"] = f"{start} restore {last.id[:8]} -- {path}"
        if one.node.is_file:
            row["show_command"] = f"{start} show {last.id[:8]}:{path}"
    return row


def _start(context: Context, place: Place) -> str:
    """The command for where the user stands."""
    if places.is_below(context.here, place.mountpoint):
        return "cowfs"
    return f"cowfs -C {shlex.quote(place.mountpoint)}"


def _from_here(context: Context, place: Place, path: str) -> str:
    """A path of the workspace as it must be typed."""
    if places.is_below(context.here, place.mountpoint):
        return os.path.relpath(os.path.join(place.mountpoint, path), context.here)
    return path


def _quoted(path: str) -> str:
    """A path as a word of a shell; what cannot be printed as bash and zsh understand it."""
    if path.isprintable():
        return shlex.quote(path)
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(path)
    )
    return f"$'{''.join(plain)}'"


def _text(path: bytes) -> str:
    return output.printable(os.fsdecode(path))
