"""`cowfs seal`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import FilePath, command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.client.places import Place
from cowfs.errors import SealIncompleteError

_SHOWN_PROBLEMS = 20


@command(
    "seal",
    examples=[
        ("cowfs seal", "everything in the workspace around the working directory"),
        ("cowfs seal project", "everything in another one"),
        ("cowfs seal src assets/logo.png", "only these, at and below"),
        ("cowfs seal --idle --rate 20", "at most 20 MB/s, and only while nobody uses the mount"),
    ],
)
@click.argument("paths", metavar="[DIR] [PATH]...", nargs=-1, type=FilePath())
@click.option(
    "--rate",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="MB/s",
    help="Read at most so many million bytes a second.",
)
@click.option("--idle", is_flag=True, help="Wait while others use the mount.")
def seal(context: Context, paths: tuple[str, ...], rate: float | None, idle: bool) -> None:
    """Read what only the directory has into the store, so that nothing that happens to the
    directory can damage the history.

    Without PATH everything. Afterwards every checkpoint keeps its content whatever is edited or
    deleted in the directory from outside. The workspace stays usable meanwhile. Interrupt it at any
    time: what was read is kept, and the next run goes on from there.
    """
    place = context.locate_paths(paths)
    inside = [context.inside(place, path) for path in paths]
    wanted = [] if "" in inside else inside
    speed = (rate or 0.0) * 1e6
    with ProgressLine() as line:

        def show(params: dict[str, Any]) -> None:
            if params.get("phase") == "list":
                line.show("reading directories")
                return
            what = f"{output.size(params.get('bytes', 0))} {params.get('path', '')}"
            line.step("sealing", params.get("done", 0), params.get("total"), what)

        daemon = opening.connect(place)
        if daemon is None:
            sealed = _offline(place, wanted, speed, show)
        else:
            with daemon:
                params = {"paths": wanted, "rate": speed, "idle": idle}
                sealed = daemon.call("seal", params, show)
    _tell(context, sealed)


def _offline(
    place: Place, paths: list[str], rate: float, show: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    import os

    from cowfs.service.sealing import Pace
    from cowfs.service.sealing import seal as seal_files

    def progress(**params: Any) -> None:
        show(params)

    with opening.writing(place) as engine:
        names = [os.fsencode(path) for path in paths]
        return seal_files(engine, names, Pace(rate), progress).to_json()


def _tell(context: Context, sealed: dict[str, Any]) -> None:
    if sealed["complete"]:
        context.answer(sealed, _text(sealed))
        return
    failure = SealIncompleteError(count=len(sealed["problems"]))
    context.answer_failed(sealed, _text(sealed), failure)


def _text(sealed: dict[str, Any]) -> str:
    lines = [f"sealed {output.plural(sealed['files'], 'file')}, {output.size(sealed['bytes'])}"]
    if sealed["unsealed"]:
        lines.append(f"only in the directory still: {output.plural(sealed['unsealed'], 'file')}")
    elif sealed["complete"]:
        lines.append("nothing outside can damage the history of this workspace")
    if sealed["lost"]:
        lost = output.plural(sealed["lost"], "older version")
        lines.append(f"changed outside before they were saved, and lost: {lost}")
    problems = sealed["problems"]
    lines += [f"  {row['path']}: {row['detail']}" for row in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        lines.append(f"  and {len(problems) - _SHOWN_PROBLEMS:,} more")
    return "\n".join(output.printable(line) for line in lines)
