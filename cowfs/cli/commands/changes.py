"""`cowfs changes`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import Checkpoint, FilePath, command, how_many
from cowfs.cli.context import Context
from cowfs.errors import UsageError
from cowfs.service.audit.log import Log, Process
from cowfs.service.audit.spans import span_of
from cowfs.service.audit.stories import Story
from cowfs.service.audit.telling import Paths, later, newest

_LOOK_SECONDS = 0.3
"""How often `--follow` looks for something new."""


@command(
    "changes",
    examples=[
        ("cowfs changes", "what happened lately, the newest last"),
        ("cowfs changes src docs/index.md", "to these"),
        ("cowfs changes --since @~1", "since the last checkpoint"),
        ("cowfs changes --since 3f2a --until 9c1b", "between two"),
        ('cowfs changes --since "2 h ago"', "by time"),
        ("cowfs changes --by npm", "by npm and all that it started"),
        ("cowfs changes --by 5f0c12ab", "by that session of an agent, with its sub-agents"),
        ("cowfs changes --outside", "by others, while a session was going on"),
        ("cowfs changes --follow", "as it happens"),
    ],
)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=FilePath())
@click.option(
    "--since",
    type=Checkpoint(),
    metavar="WHEN",
    help="What was done after it: a checkpoint or a time.",
)
@click.option(
    "--until",
    type=Checkpoint(),
    metavar="WHEN",
    help="What was done before it: a checkpoint or a time.",
)
@click.option(
    "--by",
    "who",
    metavar="WHO",
    help="By a program, a pid, a user, or a session of an agent (its id, the beginning of it, or a "
    "sub-agent's); what a process started counts as its work.",
)
@click.option(
    "--outside",
    is_flag=True,
    help="What processes of no session did while one was going on.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on, until interrupted or unmounted.")
@how_many(25)
def changes(
    context: Context,
    paths: tuple[str, ...],
    since: str | None,
    until: str | None,
    who: str | None,
    outside: bool,
    follow: bool,
    limit: int,
) -> None:
    """Tell who changed what, as a person would: what a process did in one go is one line.

    The oldest comes first. A process is called by the one that started it and its command line,
    from which passwords and the like are left out. "somebody outside" changed the directory itself,
    not the workspace. While a session of an agent is going on, what processes do that do not belong
    to one is marked with [outside].
    """
    place = context.locate_paths(paths)
    tops = [os.fsencode(context.inside(place, path)) for path in paths]
    wanted = _wanted(who, outside)
    with opening.reading(place, need_base=False) as workspace:
        log = Log(workspace.reader)
        stories = newest(
            log,
            Paths(workspace.reader),
            limit,
            span=span_of(workspace, since, until, time.time_ns()),
            tops=tops,
            wanted=wanted,
            whole=context.json,
        )
        last = log.last
    if not follow:
        now = time.time_ns()
        text = "\n".join(_line(story, output.age(story.until, now)) for story in stories)
        document = {"changes": [story.to_json() for story in stories]}
        context.answer(document, text or "no changes are known")
        return
    for story in stories:
        _print(context, story)
    while place.mounted:
        time.sleep(_LOOK_SECONDS)
        with opening.reading(place, need_base=False) as workspace:
            found = Log(workspace.reader), Paths(workspace.reader)
            for number, told in later(*found, last, tops, wanted, whole=context.json):
                last = number
                for story in told:
                    _print(context, story)
        place = context.locate_paths(paths)


def _wanted(who: str | None, outside: bool) -> Callable[[Process], bool] | None:
    """Whose changes are told; None for all."""
    if who == "":
        raise UsageError(detail="'' is nobody's name", command="changes")
    if who is None:
        return (lambda process: process.record.outside) if outside else None
    return lambda process: process.is_of(who) and (process.record.outside or not outside)


def _print(context: Context, story: Story) -> None:
    """One story at once; with --json one document a line."""
    if context.json:
        output.document({"change": story.to_json()})
    else:
        moment = time.strftime("%H:%M:%S", time.localtime(story.until / 1e9))
        output.text(_line(story, moment))
    sys.stdout.flush()


def _line(story: Story, moment: str) -> str:
    mark = "  [outside] " if story.outside else "  "
    return output.printable(f"{moment:>10}{mark}{story.who()} {story.what()}")
