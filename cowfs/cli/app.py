"""The command line as a whole: which commands there are, and how errors end.

A command's module is imported when the command is used.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import traceback

import click

from cowfs import __version__
from cowfs.cli import output
from cowfs.cli.command import HELP, Command, Directory
from cowfs.cli.context import Context
from cowfs.client.rpc import RpcError
from cowfs.errors import CowfsError, OutputFailedError, UsageError, as_cowfs_error

COMMANDS = {
    "mount": ("mount", "Mount a directory: from then on everything is recorded."),
    "unmount": ("unmount", "Unmount a workspace; the directory gets its last state."),
    "status": ("status", "Show whether it is mounted, what changed, and whether all is well."),
    "checkpoint": ("checkpoint", "Keep the present state under an id, and a label if wanted."),
    "run": ("run", "Run a command between two checkpoints, and say what it changed."),
    "log": ("log", "List the checkpoints, or those that changed a path."),
    "find": ("find", "Find files by name, also those that are gone."),
    "bisect": ("bisect", "Find the checkpoint that broke a test."),
    "changes": ("changes", "Tell who changed what."),
    "blame": ("blame", "Say who changed a file last, or each of its lines."),
    "diff": ("diff", "Show what differs between two states."),
    "show": ("show", "Print a file as it was."),
    "restore": ("restore", "Go back to a checkpoint, wholly or for some paths."),
    "undo": ("restore", "Take the last restore back."),
    "redo": ("restore", "Take the last undo back."),
    "sessions": ("sessions", "List the sessions of agents, and what was interrupted."),
    "session": ("sessions", "Begin or end a session of an agent without hooks; show one."),
    "resume": ("resume", "Go on with a session that was interrupted."),
    "export": ("export", "Write a whole state out as a directory or a tar archive."),
    "git": ("git", "Write checkpoints into a git repository, as commits and as notes."),
    "apply": ("apply", "Write the present state into the directory that was mounted."),
    "seal": ("seal", "Save what only the directory has, so that nothing outside can harm it."),
    "pin": ("forget", "Keep a checkpoint whatever the rules of retention say."),
    "unpin": ("forget", "Let the rules of retention apply to a checkpoint again."),
    "forget": ("forget", "Remove checkpoints from the history."),
    "gc": ("gc", "Remove checkpoints that no rule keeps, and free what only they showed."),
    "compact": ("compact", "Give room that the store's file does not need back to the disk."),
    "stats": ("stats", "Show what the store takes, what for, and what is saved."),
    "verify": ("verify", "Check every record and every block of the store."),
    "doctor": ("doctor", "Look for what is wrong with this machine, the mounts, the stores."),
    "config": ("config", "Show or change the settings: automatic checkpoints and others."),
    "mcp": ("mcp", "Serve checkpoints to an agent, by the Model Context Protocol."),
    "hooks": ("hooks", "Let an agent tell cowfs what it does: checkpoints at its prompts."),
    "hook": ("hook", "What an agent runs at each step; `cowfs hooks` installs it."),
    "statusline": ("statusline", "Print a line about the workspace, for an agent or a prompt."),
    "service": ("service", "Let systemd mount a workspace at login, and keep it mounted."),
    "completion": ("completion", "Print the completion script for a shell."),
}
"""Command to (module, one line about it), in the order of the help."""


_NOTHING_ASKED = 1
"""Not 2: an agent that is too old for hooks with arguments starts `cowfs` alone, and takes a 2 for
a refusal of what its user has typed."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Commands(click.Group):
    """The group of all commands, imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"cowfs.cli.commands.{COMMANDS[cmd_name][0]}")
        command: Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        names = [
            click.shell_completion.CompletionItem(name, help=about)
            for name, (_, about) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.command("cowfs", cls=Commands, context_settings=HELP, invoke_without_command=True)
@click.option(
    "-C",
    "directory",
    metavar="DIR",
    type=Directory(),
    help="Work as if started in DIR.",
)
@click.option("--json", "as_json", is_flag=True, hidden=True)
@click.version_option(__version__, message="cowfs %(version)s")
@click.pass_context
def cli(ctx: click.Context, directory: str | None, as_json: bool) -> None:
    """Record everything that happens in a project directory, and go back to any checkpoint.

    A mounted workspace is found from anywhere below it, and by paths that lead into it. Checkpoints
    are named by their id or the first digits of it (at least 4), by label, by @ (now), @~1 (the
    last one), @~2 (the one before it), or by time: "@{10 minutes ago}", "@{2026-11-29 14:00}".
    """
    ctx.obj = Context(directory)
    ctx.obj.json = as_json
    if ctx.invoked_subcommand is None:
        if as_json:
            raise click.UsageError("missing command", ctx)
        click.echo(ctx.get_help(), err=True)
        ctx.exit(_NOTHING_ASKED)


def run(arguments: list[str]) -> int:
    """Run a command line; returns the exit code. Whatever goes wrong is printed as an error."""
    output.prepare()
    if "_COWFS_COMPLETE" in os.environ:
        cli.main(args=arguments, prog_name="cowfs")  # a shell asks; does not return
    try:
        try:
            with cli.make_context("cowfs", list(arguments)) as context:
                cli.invoke(context)
            code = 0
        except click.exceptions.Exit as ending:
            code = ending.exit_code
        return output.finish(code)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return 130
    except BrokenPipeError:
        return output.broken_pipe()
    except Exception as error:
        return fail(error, arguments)


def fail(error: Exception, arguments: list[str]) -> int:
    """Print an error as the command line asks for it; returns the exit code.

    A traceback is only shown with COWFS_DEBUG=1 in the environment.
    """
    if os.environ.get("COWFS_DEBUG") == "1":
        traceback.print_exception(error)
    if isinstance(error, RpcError):
        fields = error.error
    elif isinstance(error, CowfsError):
        fields = error.to_json()
    else:
        fields = _as_cowfs_error(error).to_json()
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    try:
        return output.finish(output.error(fields, as_json="--json" in options))
    except OSError:
        output.broken_pipe()
        return int(fields["exit_code"])


def _as_cowfs_error(error: Exception) -> CowfsError:
    """An error of click or of Python as one of ours."""
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = context.command_path.partition(" ")[2] if context is not None else ""
        message = re.sub(r"\s*\n\t", " ", error.format_message().rstrip("."))  # lists of choices
        return UsageError(detail=message[:1].lower() + message[1:], command=path)
    if isinstance(error, OSError) and error.errno in _NO_ROOM and not error.filename:
        return OutputFailedError(detail=os.strerror(error.errno or 0))
    return as_cowfs_error(error)
