"""`cowfs hook`: for its help, and for command lines that are not plain (cowfs/__main__.py)."""

from __future__ import annotations

import click

from cowfs.cli import output
from cowfs.cli.command import command
from cowfs.cli.context import Context


@command(
    "hook",
    examples=[
        ("cowfs hooks install claude", "has Claude Code run it at each step"),
        ("cowfs hook claude UserPromptSubmit", "what it runs; the event comes as JSON on stdin"),
        ("cowfs hook codex --timeout 3", "the event is named in the JSON; 3 seconds at most"),
    ],
)
@click.argument("agent", required=False)
@click.argument("event", nargs=-1)
@click.option("--timeout", type=float, metavar="SECONDS", help="Give up after so long.")
def hook(
    context: Context, agent: str | None, event: tuple[str, ...], timeout: float | None
) -> None:
    """Tell cowfs what an agent does. Agents run this; it reads JSON on stdin.

    It ends with 0 whatever happens, so that it never stops the agent; what went wrong is in
    hooks.log in ~/.local/share/cowfs.
    """
    if agent is None:
        output.note("`cowfs hook AGENT [EVENT]` is run by an agent; `cowfs hooks install AGENT`")
        return
    from cowfs.hooks import run

    words = [agent, *event]
    if timeout is not None:
        words += ["--timeout", str(timeout)]
    run.run(words, context.directory)
