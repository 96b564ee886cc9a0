"""`cowfs compact`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import Directory, command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.client.places import Place


@command(
    "compact",
    examples=[
        ("cowfs compact", "the store of the workspace around the working directory"),
        ("cowfs compact project", "of another one"),
    ],
)
@click.argument("directory", metavar="[DIR]", required=False, type=Directory())
def compact(context: Context, directory: str | None) -> None:
    """Give room that the store's file does not need back to the disk.

    While the workspace is mounted: the pages of the file that are free become holes. It stays
    usable, and nothing is moved or compressed; the daemon does the same by itself when much became
    free and nobody works.

    While it is not mounted: the file is written anew, which makes it as small as it can be. The new
    one has the same content, compressed harder; both are compared record by record before it takes
    the old one's place. There must be room for it beside the old one. When it is interrupted the
    old file stays.
    """
    place = context.locate(directory)
    daemon = opening.connect(place)
    with ProgressLine() as line:
        if daemon is not None:
            with daemon:
                done = _make_holes(daemon, line)
        else:
            done = _write_anew(place, line)
    document = {**done, "saved": done["before"] - done["after"]}
    context.answer(document, _text(document))


def _make_holes(daemon: opening.Daemon, line: ProgressLine) -> dict[str, Any]:
    def show(params: dict[str, Any]) -> None:
        line.step("giving back", params.get("done", 0), params.get("total"))

    answer: dict[str, Any] = daemon.call("compact", {}, show)
    return {"mounted": True, **answer}


def _write_anew(place: Place, line: ProgressLine) -> dict[str, Any]:
    from cowfs.store.compaction import compact as write_anew

    done = write_anew(Path(place.store), line.step)
    return {
        "mounted": False,
        "before": done.before,
        "after": done.after,
        "held": 0,
        "complete": True,
    }


def _text(done: dict[str, Any]) -> str:
    size = output.size
    lines = []
    if done["saved"] > 0:
        sizes = f"{size(done['before'])} became {size(done['after'])}"
        lines.append(f"{sizes}; {size(done['saved'])} are free again")
    elif done["mounted"]:
        lines.append(f"nothing to gain while it is mounted: it takes {size(done['after'])}")
    else:
        lines.append(f"nothing to gain: it takes {size(done['after'])}")
    if done["held"] >= _MUCH:
        held = f"{size(done['held'])} more can be given back later"
        lines.append(f"{held}: somebody reads the store as it was before, or has just changed it")
    if not done["complete"]:
        lines.append("not finished: the workspace was unmounted meanwhile")
    return "\n".join(lines)


_MUCH = 1 << 20
