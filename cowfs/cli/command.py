"""What all commands have in common: `--json`, `--help` with examples, completion of arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from cowfs.cli.context import Context

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    Parameter = click.ParamType[str]
    Number = click.ParamType[int]
else:
    Parameter = Number = click.ParamType

HELP = {"help_option_names": ["-h", "--help"]}


def how_many(default: int, what: str = "How many") -> Callable[[F], F]:
    """The option -n, `limit`: so many, 0 for all."""
    return click.option(
        "-n",
        "limit",
        type=click.IntRange(0, sys.maxsize),
        default=default,
        show_default=True,
        metavar="N",
        help=f"{what}; 0 is all.",
    )


class Command(click.Command):
    """A click command whose help ends with examples: (command line, what it is for).

    `after_dashes`: how many of the arguments came after a `--`, for commands whose arguments can
    be checkpoints or paths.
    """

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["after_dashes"] = len(args) - args.index("--") - 1 if "--" in args else 0
        ctx.meta["dashes"] = "--" in args
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                formatter.write_dl(self.examples, col_max=44)


class Group(click.Group):
    """Commands below a command, whose help ends with examples as that of a command."""

    format_epilog = Command.format_epilog

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples


def _set_json(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Context).json = True


_with_json = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_set_json,
    help="Print one JSON document instead of text.",
)


def command(name: str, *, examples: Sequence[tuple[str, str]]) -> Callable[[F], Command]:
    """Make a function a command; it gets the `Context` first."""

    def decorate(function: F) -> Command:
        return click.command(name, cls=Command, examples=examples, context_settings=HELP)(
            _with_json(click.pass_obj(function))
        )

    return decorate


def group(name: str, *, examples: Sequence[tuple[str, str]]) -> Callable[[F], Group]:
    """Make a function, which does nothing, a group of commands."""

    def decorate(function: F) -> Group:
        return click.group(
            name, cls=Group, examples=examples, context_settings=HELP, no_args_is_help=False
        )(_with_json(function))

    return decorate


class Directory(Parameter):
    """A directory, taken as it is: the command says what is wrong with it."""

    name = "directory"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [click.shell_completion.CompletionItem(incomplete, type="dir")]


class Size(Number):
    """A number of bytes: "500M", "20G" (powers of 1024); "none" is 0."""

    name = "size"
    _UNITS: ClassVar[dict[str, int]] = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value.lower() == "none":
            return 0
        number, unit = value.upper().removesuffix("IB").removesuffix("B"), ""
        if number[-1:].isalpha():
            number, unit = number[:-1], number[-1]
        try:
            size = int(float(number) * (1 << self._UNITS[unit]))
        except (ValueError, KeyError, OverflowError):
            self.fail(f"{value!r} is not a size such as 500M or 20G", param, ctx)
        if not 0 < size < 1 << 62:
            self.fail(f"{value!r} is not a possible size", param, ctx)
        return size


class FilePath(Parameter):
    """A path, taken as it is."""

    name = "path"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [click.shell_completion.CompletionItem(incomplete, type="file")]


class Checkpoint(Parameter):
    """The name of a checkpoint. `paths`: a path may stand in its place; `suffix`: follows it."""

    name = "checkpoint"

    def __init__(self, *, paths: bool = False, suffix: str = "") -> None:
        self._paths = paths
        self._suffix = suffix

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        from cowfs.cli.completing import checkpoint_names

        context = Context(ctx.find_root().params.get("directory"))
        items = [
            click.shell_completion.CompletionItem(name + self._suffix, help=about)
            for name, about in checkpoint_names(context, incomplete)
        ]
        if self._paths:
            items.append(click.shell_completion.CompletionItem(incomplete, type="file"))
        return items


class Session(Parameter):
    """The name of an agent's session."""

    name = "session"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        from cowfs.cli.completing import session_names

        context = Context(ctx.find_root().params.get("directory"))
        return [
            click.shell_completion.CompletionItem(name, help=about)
            for name, about in session_names(context, incomplete)
        ]
