"""`cowfs completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cowfs.cli.command import command
from cowfs.cli.context import Context


@command(
    "completion",
    examples=[
        ('eval "$(cowfs completion bash)"', "in ~/.bashrc"),
        ('eval "$(cowfs completion zsh)"', "in ~/.zshrc, after compinit"),
        ("cowfs completion fish | source", "in ~/.config/fish/config.fish"),
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, context: Context, shell: str) -> None:
    """Print the script by which a shell completes commands, options, checkpoints and paths."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, "cowfs", "_COWFS_COMPLETE").source()
    context.answer({"shell": shell, "script": script}, script.rstrip("\n"))
