"""`cowfs doctor`."""

from __future__ import annotations

import click

from cowfs.cli import output
from cowfs.cli.command import command
from cowfs.cli.context import Context
from cowfs.cli.examining import BAD, OK, examine
from cowfs.errors import UnhealthyError


@command(
    "doctor",
    examples=[
        ("cowfs doctor", "this machine, all mounts and stores"),
        ("cowfs doctor --json", "for a program; exit code 52 when something is wrong"),
    ],
)
@click.option("--quiet", is_flag=True, help="Only what is wrong or worth a note.")
def doctor(context: Context, quiet: bool) -> None:
    """Look for what is wrong, and say what to do: FUSE, kernel and libraries, dead mounts, stores,
    free room, daemons and their logs. Nothing is changed.
    """
    findings = list(examine(context.directory))
    lines = []
    for found in findings:
        if quiet and found.state == OK:
            continue
        lines.append(output.printable(f"{found.state:5}{found.subject}: {found.detail}"))
        if found.advice:
            lines.append(output.printable(f"     -> {found.advice}"))
    bad = sum(found.state == BAD for found in findings)
    document = {"healthy": not bad, "findings": [found.to_json() for found in findings]}
    if not bad:
        context.answer(document, "\n".join(lines) or "all is well")
        return
    context.answer_failed(document, "\n".join(lines), UnhealthyError(count=bad))
