"""`cowfs unmount`."""

from __future__ import annotations

import os
from typing import Any

import click

from cowfs.api.unmounting import ask, clean_up, wait_for_end
from cowfs.cli import applying, output
from cowfs.cli import context as opening
from cowfs.cli.command import Directory, command
from cowfs.cli.context import Context, Daemon
from cowfs.cli.progress import ProgressLine
from cowfs.errors import DaemonUnreachableError, NotMountedError


@command(
    "unmount",
    examples=[
        ("cowfs unmount", "the workspace around the working directory"),
        ("cowfs unmount project --no-apply", "leave the directory as it was at the mount"),
        ("cowfs unmount project --force", "whoever uses it"),
    ],
)
@click.argument("directory", metavar="[DIR]", required=False, type=Directory())
@click.option("--force", is_flag=True, help="Unmount although processes use it.")
@click.option("--no-apply", is_flag=True, help="Do not write the changes into the directory.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the processes that use it.",
)
def unmount(
    context: Context, directory: str | None, force: bool, no_apply: bool, timeout: float
) -> None:
    """Unmount a workspace.

    Of a workspace that is mounted over its directory, the present state is written into the
    directory, so that it goes on as it is; --no-apply leaves the directory as it was when it was
    mounted. The history stays in the store either way.
    """
    place = context.locate(directory)
    if not place.mounted:
        raise NotMountedError(path=place.mountpoint)
    apply = place.in_place and not no_apply
    os.chdir("/")
    try:
        daemon = opening.connect(place)
    except DaemonUnreachableError:
        if not clean_up(place.mountpoint):
            raise
        output.note(f"the daemon was dead; cleaned up the mount at {place.mountpoint}")
        applied = applying.offline(place) if apply else None
        answer: dict[str, Any] = {
            "mountpoint": place.mountpoint,
            "applied": applied,
            "unstored": "",
        }
    else:
        assert daemon is not None
        with daemon:
            answer = _ask(daemon, {"force": force, "apply": apply}, 0.0 if force else timeout)
        wait_for_end(place, answer.pop("pid", None))
        if unstored := answer["unstored"]:
            output.note(f"the last changes are lost: {unstored}")
    context.answer(answer, _text(answer))


def _text(answer: dict[str, Any]) -> str:
    applied = answer["applied"]
    text = output.printable(f"unmounted {answer['mountpoint']}")
    return f"{text}; {applying.summary(applied)}" if applied is not None else text


def _ask(daemon: Daemon, params: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Unmount by the daemon; waits for those who use the mount. Raises RpcError (COWFS_BUSY)."""
    with ProgressLine() as line:

        def waiting(text: str) -> None:
            line.show(text, at_once=True)

        return ask(daemon, params, timeout, applying.shown_on(line), waiting)
