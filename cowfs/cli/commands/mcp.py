"""`cowfs mcp`."""

from __future__ import annotations

import os
import signal
import sys

import click

from cowfs.cli import output
from cowfs.cli.command import command
from cowfs.cli.context import Context
from cowfs.errors import ExtraMissingError

_PROJECT = "CLAUDE_PROJECT_DIR"


@command(
    "mcp",
    examples=[
        ("claude mcp add cowfs -- cowfs mcp", "let Claude Code use it in this project"),
        ("cowfs -C project mcp", "for the workspace around that directory"),
        ("cowfs mcp --allow-restore", "and let the agent restore files"),
        ("cowfs config mcp.restore on", "the same, for good, in this workspace"),
    ],
)
@click.option("--allow-restore", is_flag=True, help="Offer a tool that restores files.")
@click.pass_context
def mcp(ctx: click.Context, context: Context, allow_restore: bool) -> None:
    """Serve checkpoints to an agent, by the Model Context Protocol on stdin and stdout.

    Started by the agent, not by people. The tools are status, checkpoint, log, changes, diff,
    preview, show; and restore, of files and never of the conversation, if it is allowed. The
    workspace is that of -C, of $CLAUDE_PROJECT_DIR or of the working directory.

    Needs the extra `mcp` of the package.
    """
    directory = context.directory
    if ctx.find_root().params.get("directory") is None:
        directory = os.path.join(directory, os.environ.get(_PROJECT, ""))
    try:
        from cowfs.mcp.server import serve
    except ImportError as error:
        raise ExtraMissingError(
            command="mcp",
            extra="mcp",
            package="mcp>=2,<3",
            python=sys.executable,
            detail=str(error),
        ) from None
    os.chdir("/")  # it lives as long as the agent, and must not keep the mount busy
    # The thread that waits for a request cannot be interrupted; there is nothing to tidy up.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    if sys.stdin.isatty():
        output.note("an agent starts this, and speaks to it on stdin; Ctrl-D ends it")
    serve(directory, allow_restore=allow_restore)
