"""`cowfs verify`."""

from __future__ import annotations

import contextlib

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.errors import DaemonUnreachableError, VerifyFailedError
from cowfs.service.verify import Problem, Report
from cowfs.service.verify import verify as check
from cowfs.service.workspace import ReadOnly
from cowfs.store.snapshot import Reader

_SHOWN_PATHS = 3


@command(
    "verify",
    examples=[
        ("cowfs verify", "the store, and that the mount shows what is stored"),
        ("cowfs verify --thorough", "and read all that only the base directory has"),
        ("cowfs verify --json", "for a program; exit code 47 when there is a problem"),
    ],
)
@click.option("--thorough", is_flag=True, help="Read content that only the base has, too.")
def verify(context: Context, thorough: bool) -> None:
    """Check every record, every block's hash, every reference and link count of the store, and
    that what is mounted equals what is stored.

    Nothing is changed. Every problem says which checkpoints and paths are hit.
    """
    place = context.locate()
    with contextlib.ExitStack() as stack:
        try:
            daemon = opening.connect(place)
        except DaemonUnreachableError:
            daemon = None
        if daemon is not None:
            stack.enter_context(daemon)
        workspace = stack.enter_context(opening.reading(place, need_base=False, damaged=True))
        line = stack.enter_context(ProgressLine())

        def progress(phase: str, done: int, total: int) -> None:
            line.step(f"checking {phase}", done, total)

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
    _tell(context, report)


def _tell(context: Context, report: Report) -> None:
    if not report.count:
        context.answer(report.to_json(), _text(report))
        return
    failure = VerifyFailedError(count=report.count).to_json()
    if not context.json:
        output.text(_text(report))
    code = output.error(failure, as_json=context.json, result=report.to_json())
    raise click.exceptions.Exit(code)


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
    if problem.paths:
        more = len(problem.paths) - _SHOWN_PATHS
        text += f"; {', '.join(problem.paths[:_SHOWN_PATHS])}"
        text += f" and {more} more" if more > 0 else ""
    if problem.checkpoints:
        more = len(problem.checkpoints) - _SHOWN_PATHS
        text += f"; in {', '.join(name[:8] for name in problem.checkpoints[:_SHOWN_PATHS])}"
        text += f" and {more} more" if more > 0 else ""
    return text
