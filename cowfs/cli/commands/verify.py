"""`cowfs verify`."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.client.places import Place
from cowfs.errors import (
    DaemonUnreachableError,
    RepairMountedError,
    StoreDamagedError,
    UsageError,
    VerifyFailedError,
)
from cowfs.format.version import VERSION
from cowfs.service.repair import Action, Repaired, repair
from cowfs.service.verify import Problem, Report
from cowfs.service.verify import verify as check
from cowfs.service.verify.pages import verify_pages
from cowfs.service.workspace import ReadOnly
from cowfs.store.snapshot import Reader
from cowfs.store.upgrade import drop_kept

_SHOWN_PATHS = 3


@command(
    "verify",
    examples=[
        ("cowfs verify", "the store, and that the mount shows what is stored"),
        ("cowfs verify --thorough", "and read all that only the base directory has"),
        ("cowfs verify --json", "for a program; exit code 47 when there is a problem"),
        ("cowfs verify --repair --dry-run", "what could be repaired; not while it is mounted"),
        ("cowfs verify --repair", "say it, ask, and do it"),
    ],
)
@click.option("--thorough", is_flag=True, help="Read content that only the base has, too.")
@click.option("--repair", "mend", is_flag=True, help="Repair what can be repaired.")
@click.option("--dry-run", is_flag=True, help="With --repair: only say what would be done.")
@click.option("--yes", is_flag=True, help="With --repair: do not ask.")
def verify(context: Context, thorough: bool, mend: bool, dry_run: bool, yes: bool) -> None:
    """Check every record, every block's hash, every reference and link count of the store, and
    that what is mounted equals what is stored.

    Nothing is changed, but by --repair, and that the copy which an upgrade left is removed when
    there is no problem. Every problem says which checkpoints and paths are hit.

    A repair restores blocks and records that the base directory or another record still has,
    rebuilds what follows from other records, and marks what is lost, so that it is reported as a
    problem once. The workspace must not be mounted. The store is verified before and after, and
    nothing is written unless it gets better. Where pages of its file are damaged, another file is
    made of what is sound; the damaged one is kept beside it.
    """
    place = context.locate()
    if mend:
        _repair(context, place, dry_run=dry_run, yes=yes)
        return
    if dry_run or yes:
        raise UsageError(detail="--dry-run and --yes belong to --repair", command="verify")
    with contextlib.ExitStack() as stack:
        try:
            daemon = opening.connect(place)
        except DaemonUnreachableError:
            daemon = None
        if daemon is not None:
            stack.enter_context(daemon)
        line = stack.enter_context(ProgressLine())

        def progress(phase: str, done: int, total: int) -> None:
            line.step(f"checking {phase}", done, total)

        try:
            workspace = stack.enter_context(opening.reading(place, need_base=False, damaged=True))
        except StoreDamagedError:
            report = verify_pages(Path(place.store), progress)
            if not report.problems:
                raise
            _tell(context, report, place=place)
            return

        def refresh() -> ReadOnly:
            """The workspace as it is now, on the same store."""
            assert daemon is not None
            daemon.call("flush")
            reader = stack.enter_context(Reader(workspace.store))
            base = workspace.base.fd if workspace.base is not None else None
            return ReadOnly(workspace.store, reader, base)

        report = check(
            workspace,
            mountpoint=place.mountpoint if daemon is not None else None,
            progress=progress,
            refresh=refresh if daemon is not None else None,
            thorough=thorough,
        )
        dropped = _drop_copy(workspace, report)
    told = "the upgraded store is sound: its copy in the old format was removed" if dropped else ""
    _tell(context, report, {"upgrade_copy_removed": dropped}, told, place=place)


def _drop_copy(workspace: ReadOnly, report: Report) -> bool:
    """Remove the copy that an upgrade left, if the store in its place is whole."""
    store = workspace.store
    if report.count or report.skipped or store.version < VERSION:
        return False
    return drop_kept(store.path)


def _repair(context: Context, place: Place, *, dry_run: bool, yes: bool) -> None:
    """Say what a repair would do, ask, do it, and say what is left."""
    if place.mounted:
        raise RepairMountedError(path=place.mountpoint, base=place.base)
    ask = not (dry_run or yes)
    if ask and (context.json or not sys.stdin.isatty()):
        raise UsageError(detail="a repair needs --yes or --dry-run here", command="verify")
    done = _run_repair(place, dry_run=dry_run or ask)
    if ask and done.actions:
        output.text(_actions_text(done.actions, "would be "))
        if not click.confirm("Repair it?"):
            raise click.exceptions.Exit(1)
        done = _run_repair(place, dry_run=False)
    told = {"dry_run": dry_run, **done.to_json()}
    text = _actions_text(done.actions, "would be " if dry_run else "")
    if done.kept:
        text += f"\nthe damaged file is kept: {done.kept}"
    _tell(context, done.before if dry_run else done.after, {"repair": told}, text)


def _run_repair(place: Place, *, dry_run: bool) -> Repaired:
    base = opening.base_descriptor(place)
    try:
        with ProgressLine() as line:

            def progress(phase: str, done: int, total: int) -> None:
                line.step(f"checking {phase}", done, total)

            return repair(Path(place.store), base, dry_run=dry_run, progress=progress)
    finally:
        if base is not None:
            os.close(base)


def _actions_text(actions: list[Action], would: str) -> str:
    lines = [
        f"{would}{action.how}: {action.table} {action.thing}: {action.detail}"
        + _few(action.paths, "; ")
        for action in actions
    ]
    return "\n".join(output.printable(line) for line in lines or ["nothing to repair"])


def _tell(
    context: Context,
    report: Report,
    further: dict[str, Any] | None = None,
    first: str = "",
    *,
    place: Place | None = None,
) -> None:
    """Print a report; `further` and `first` are what a repair has to say before it. place: of the
    workspace that may be repaired."""
    document, text = {**(further or {}), **report.to_json()}, _text(report)
    if report.count and place is not None:
        document["to_repair"] = _to_repair(place, report)
        text += "\nto repair it: " + "; ".join(document["to_repair"])
    text = f"{first}\n{text}" if first else text
    if not report.count:
        context.answer(document, text)
        return
    context.answer_failed(document, text, VerifyFailedError(count=report.count))


def _to_repair(place: Place, report: Report) -> list[str]:
    """What to type, and what it needs."""
    base = shlex.quote(place.base)
    steps = [f"cowfs -C {base} verify --repair"]
    if place.mounted:
        steps.insert(0, f"cowfs unmount {shlex.quote(place.mountpoint)} --no-apply")
        steps.append(f"cowfs mount {base}")
    if any(problem.check == "structure" for problem in report.problems):
        size = os.stat(os.path.join(place.store, "data.mdb")).st_size
        steps.append(f"(about {size >> 20:,} MiB must be free for another file beside the store's)")
    return steps


def _text(report: Report) -> str:
    lines = [_line(problem) for problem in (*report.problems, *report.notes)]
    lines += [f"{check}: and {more:,} more" for check, more in report.omitted.items()]
    lines += [f"not checked: {what}" for what in report.skipped]
    checked = ", ".join(f"{number:,} {what}" for what, number in sorted(report.checked.items()))
    lines.append(f"checked: {checked}")
    if not report.count:
        lines.append("no problem found")
    return "\n".join(output.printable(line) for line in lines)


def _line(problem: Problem) -> str:
    text = f"{problem.severity}: {problem.check}: {problem.table} {problem.thing}: {problem.detail}"
    text += _few(problem.paths, "; ")
    return text + _few([name[:8] for name in problem.checkpoints], "; in ")


def _few(names: Sequence[str], before: str) -> str:
    """The first of some names, and how many more there are."""
    if not names:
        return ""
    more = len(names) - _SHOWN_PATHS
    text = before + ", ".join(names[:_SHOWN_PATHS])
    return text + (f" and {more} more" if more > 0 else "")
