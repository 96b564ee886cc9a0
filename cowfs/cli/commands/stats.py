"""`cowfs stats`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.errors import UsageError
from cowfs.format.records import CheckpointRecord
from cowfs.service import stats as service
from cowfs.service.collecting import preview
from cowfs.service.selectors import all_checkpoints
from cowfs.service.workspace import ReadOnly

_SMALL = 20_000
"""Records up to which the details are shown unasked: they take no longer than a blink."""
_SAVED = {
    "history": "not stored again, or only in the directory",
    "dedup": "equal blocks stored once",
    "zstd": "compressed",
    "delta": "stored as a difference",
    "segments": "compressed together by `cowfs compact`",
}


@command(
    "stats",
    examples=[
        ("cowfs stats", "what the store takes"),
        ("cowfs stats --details", "what for, and what each layer saves, however large it is"),
        ("cowfs stats --free start..3f2a", "what removing these checkpoints would free"),
        ("cowfs stats --free 100", "the same for the 100 oldest"),
    ],
)
@click.option("--details", is_flag=True, help="Look at all records, however many there are.")
@click.option(
    "--free",
    metavar="A..B|N",
    help="What would be freed without the checkpoints A to B, or the N oldest.",
)
def stats(context: Context, details: bool, free: str | None) -> None:
    """Show how much the store takes, for what, and how much is saved.

    The sizes of tables are those of their pages. Of a great store the rest is shown with
    --details only. Nothing is removed.
    """
    place = context.locate()
    with opening.reading(place, need_base=False) as workspace, ProgressLine() as line:
        short = service.summary(workspace)
        found = freed = None
        if free is not None:
            freed = _freed(workspace, free, line)
        elif details or short.records <= _SMALL:

            def progress(what: str, done: int, total: int) -> None:
                line.step(f"looking at table {what}", done, total)

            found = service.details(workspace, progress)
    document: dict[str, Any] = {
        "store": place.store,
        **asdict(short),
        "details": found.to_json() if found is not None else None,
        "freed": freed,
    }
    if freed is not None:
        text = _text_of_freed(freed)
    else:
        text = "\n".join([*_lines(place.store, short), *_detail_lines(short, found)])
    context.answer(document, text)


def _freed(workspace: ReadOnly, selection: str, line: ProgressLine) -> dict[str, Any]:
    chosen = _chosen(workspace, selection)

    def progress(**step: Any) -> None:
        line.step(f"looking at {step['phase']}", step["done"], step["total"])

    would = preview(workspace.reader, [record.epoch for record in chosen], progress)
    return {
        "checkpoints": [record.id for record in chosen],
        "versions": would.versions,
        "blocks": would.blocks,
        "bytes": would.bytes,
    }


def _chosen(workspace: ReadOnly, selection: str) -> list[CheckpointRecord]:
    """The checkpoints that are meant; the first one, that of the directory itself, stays."""
    known = [record for record in all_checkpoints(workspace.reader) if record.epoch]
    if selection.isdecimal() and selection.isascii() and len(selection) < 10:
        return known[: int(selection)]
    first, dots, last = selection.partition("..")
    if not dots:
        raise UsageError(detail=f"{selection!r} is neither A..B nor a number", command="stats")
    ends = [workspace.point(name).checkpoint if name else None for name in (first, last)]
    start = ends[0].epoch if ends[0] is not None else 0
    end = ends[1].epoch if ends[1] is not None else workspace.branch.head
    return [record for record in known if start <= record.epoch <= end]


def _text_of_freed(freed: dict[str, Any]) -> str:
    count = output.plural(len(freed["checkpoints"]), "checkpoint")
    blocks = output.plural(freed["blocks"], "block")
    return (
        f"without {count}: {output.size(freed['bytes'])} in {blocks}, and"
        f" {output.plural(freed['versions'], 'record')}, could be freed"
    )


def _lines(store: str, short: service.Summary) -> list[str]:
    used, free = output.size(short.used_bytes), output.size(short.free_bytes)
    of = f" of {output.size(short.quota_bytes)}" if short.quota_bytes else ""
    return [
        f"{output.printable(store)}: {output.size(short.disk_bytes)} on the disk",
        f"  used        {used}{of}; {free} free inside",
        f"  history     {output.plural(short.checkpoints, 'checkpoint')}",
        "  tables",
        *(
            f"    {table.name:<11} {output.size(table.bytes):>10}  "
            f"{output.plural(table.entries, 'record')}"
            for table in short.tables
            if table.entries
        ),
    ]


def _detail_lines(short: service.Summary, found: service.Details | None) -> list[str]:
    if found is None:
        return ["`cowfs stats --details` says what for, and what is saved"]
    saved = found.saved
    blocks = next(table.bytes for table in short.tables if table.name == "block")
    lines = [
        "  files",
        f"    now         {output.size(found.logical):>10}",
        f"    in all      {output.size(found.logical_all):>10}  if each checkpoint were a copy",
        *(
            f"    {name:<11} {_less(saved[name]):>10}  {about}"
            for name, about in _SAVED.items()
            if saved[name]
        ),
        f"    stored      {output.size(found.stored):>10}  in pages of {output.size(blocks)}",
    ]
    if found.unused:
        lines.append(f"    unused      {output.size(found.unused):>10}  `cowfs gc` frees it")
    if found.said:
        lines += [
            "  conversations of agents",
            f"    in all      {output.size(found.said):>10}",
            f"    stored      {output.size(found.said_stored):>10}",
        ]
    for title, parts in (("checkpoints", found.checkpoints), ("paths", found.paths)):
        if parts:
            lines.append(f"  {title} that added the most")
        for part in parts:
            name = part.name[:8] if title == "checkpoints" else part.name
            label = f"({part.label}) " if part.label else ""
            about = f"  {label}{part.message.partition(chr(10))[0]}".rstrip()
            lines.append(output.printable(f"    {output.size(part.stored):>10}  {name}{about}"))
    if found.damaged or found.missing:
        what = f"{found.damaged + found.missing:,} damaged or missing; see `cowfs verify`"
        lines.append(f"  left out: {what}")
    return lines


def _less(saved: int) -> str:
    """What a layer takes away, or adds: the header of each block, where there is little to save."""
    return f"-{output.size(saved)}" if saved >= 0 else f"+{output.size(-saved)}"
