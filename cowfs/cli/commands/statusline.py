"""`cowfs statusline`: its help, and command lines that are not plain (cowfs/__main__.py)."""

from __future__ import annotations

from cowfs.cli import output
from cowfs.cli.command import command
from cowfs.cli.context import Context


@command(
    "statusline",
    examples=[
        ("cowfs statusline", "a line about the workspace, or nothing"),
        ("cowfs hooks install claude --statusline", "shows it below Claude Code's prompt"),
    ],
)
def statusline(context: Context) -> None:
    """Print one line: workspace, last checkpoint and its age, what changed since.

    For the status line of an agent, which says on stdin where it works, or for the prompt of a
    shell.
    """
    from cowfs.cli import statusline as showing

    if context.json:
        output.document({"line": showing.line([context.directory])})
    else:
        showing.run(context.directory)
