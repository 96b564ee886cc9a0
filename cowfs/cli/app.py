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
    "mount": ("cmd_mount", "Mount a directory: from then on everything is recorded."),
    "unmount": ("cmd_unmount", "Unmount a workspace; the directory gets its last state."),
    "status": ("cmd_status", "Show whether it is mounted, what changed, and whether all is well."),
    "checkpoint": ("cmd_checkpoint", "Keep the present state under an id, and a label if wanted."),
    "run": ("cmd_run", "Run a command between two checkpoints, and say what it changed."),
    "log": ("cmd_log", "List the checkpoints, or those that changed a path."),
    "find": ("cmd_find", "Find files by name, also those that are gone."),
    "bisect": ("cmd_bisect", "Find the checkpoint that broke a test."),
    "changes": ("cmd_changes", "Tell who changed what."),
    "blame": ("cmd_blame", "Say who changed a file last, or each of its lines."),
    "diff": ("cmd_diff", "Show what differs between two states."),
    "show": ("cmd_show", "Print a file as it was."),
    "restore": ("cmd_restore", "Go back to a checkpoint, wholly or for some paths."),
    "undo": ("cmd_restore", "Take the last restore back."),
    "redo": ("cmd_restore", "Take the last undo back."),
    "sessions": ("cmd_sessions", "List the sessions of agents, and what was interrupted."),
    "session": ("cmd_sessions", "Begin or end a session of an agent without hooks; show one."),
    "resume": ("cmd_resume", "Go on with a session that was interrupted."),
    "export": ("cmd_export", "Write a whole state out as a directory or a tar archive."),
    "git": ("cmd_git", "Write checkpoints into a git repository, as commits and as notes."),
    "apply": ("cmd_apply", "Write the present state into the directory that was mounted."),
    "seal": ("cmd_seal", "Save what only the directory has, so that nothing outside can harm it."),
    "pin": ("cmd_forget", "Keep a checkpoint whatever the rules of retention say."),
    "unpin": ("cmd_forget", "Let the rules of retention apply to a checkpoint again."),
    "forget": ("cmd_forget", "Remove checkpoints from the history."),
    "gc": ("cmd_gc", "Remove checkpoints that no rule keeps, and free what only they showed."),
    "compact": ("cmd_compact", "Give room that the store's file does not need back to the disk."),
    "stats": ("cmd_stats", "Show what the store takes, what for, and what is saved."),
    "verify": ("cmd_verify", "Check every record and every block of the store."),
    "doctor": ("cmd_doctor", "Look for what is wrong with this machine, the mounts, the stores."),
    "config": ("cmd_config", "Show or change the settings: automatic checkpoints and others."),
    "mcp": ("cmd_mcp", "Serve checkpoints to an agent, by the Model Context Protocol."),
    "hooks": ("cmd_hooks", "Let an agent tell cowfs what it does: checkpoints at its prompts."),
    "hook": ("cmd_hook", "What an agent runs at each step; `cowfs hooks` installs it."),
    "statusline": ("cmd_statusline", "Print a line about the workspace, for an agent or a prompt."),
    "service": ("cmd_service", "Let systemd mount a workspace at login, and keep it mounted."),
    "completion": ("cmd_completion", "Print the completion script for a shell."),
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
        module = importlib.import_module(f"cowfs.cli.{COMMANDS[cmd_name][0]}")
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

    A mounted workspace is found from anywhere below it. Checkpoints are named by their id or the
    first digits of it (at least 4), by label, by @ (now), @~1 (the last one), @~2 (the one before
    it), or by time: "@{10 minutes ago}", "@{2026-11-29 14:00}".
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
