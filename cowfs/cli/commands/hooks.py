"""`cowfs hooks`: have agents run `cowfs hook`."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

import click

from cowfs import agents
from cowfs.agents.settings import PROJECT, USER, Where
from cowfs.cli import output
from cowfs.cli.command import Parameter, command
from cowfs.cli.context import Context
from cowfs.client import places
from cowfs.errors import AgentSettingsError, UsageError
from cowfs.hooks.installing import Plan, carry_out, plan

_ACTIONS = ("install", "uninstall", "status")


class AgentName(Parameter):
    """The name of an agent."""

    name = "agent"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [
            click.shell_completion.CompletionItem(name)
            for name in agents.NAMES
            if name.startswith(incomplete)
        ]


@command(
    "hooks",
    examples=[
        ("cowfs hooks install claude", "show what comes into Claude Code's settings, and ask"),
        ("cowfs hooks install claude --dry-run", "only show it"),
        ("cowfs hooks install claude --project --yes", "into the project's own settings"),
        ("cowfs hooks install claude --statusline", "its status line, too, if it has none"),
        ("cowfs hooks uninstall claude", "take them out again"),
        ("cowfs hooks status", "which agents have them"),
    ],
)
@click.argument("action", type=click.Choice(_ACTIONS))
@click.argument("agent", required=False, type=AgentName())
@click.option("--user", "scope", flag_value=USER, default=USER, help="For all you do (default).")
@click.option("--project", "scope", flag_value=PROJECT, help="In the project's own directory.")
@click.option("--statusline", is_flag=True, help="Its status line, too, if it has none.")
@click.option("--command", "program", metavar="PATH", help="How the agent shall call cowfs.")
@click.option("-y", "--yes", is_flag=True, help="Write without asking.")
@click.option("-n", "--dry-run", is_flag=True, help="Only show what would change.")
def hooks(
    context: Context,
    action: str,
    agent: str | None,
    scope: str,
    statusline: bool,
    program: str | None,
    yes: bool,
    dry_run: bool,
) -> None:
    """Let an agent tell cowfs what it does: at each prompt a checkpoint is made, with the
    conversation, and after each command the agent learns what it really changed.

    Its settings keep all else that is in them. Uninstalling brings back what was there before. Once
    installed for a user, they work in every workspace.
    """
    project, known = _project(context)
    where = _where(project, scope, program, statusline=statusline or action == "uninstall")
    if action == "status":
        _status(context, project, agent)
        return
    if agent is None:
        raise UsageError(detail=f"{action} wants the name of an agent", command="hooks")

    def in_project(item: Plan) -> bool:
        return (known or scope == PROJECT) and places.is_below(item.path, project)

    remove = action == "uninstall"
    planned = plan(agent, where, remove=remove)
    changed = [item for item in planned if item.changes]
    asked = not (yes or dry_run) and changed
    if asked and (context.json or not _is_terminal()):
        raise UsageError(
            detail="nobody can be asked here: say --yes, or --dry-run to look at it",
            command="hooks",
        )
    document: dict[str, Any] = {
        "action": action,
        "agent": agent,
        "scope": scope,
        "files": [_row(item, in_project(item)) for item in planned],
        "written": False,
    }
    if not context.json and (asked or dry_run):
        for item in changed:
            output.text("\n".join(map(output.printable, item.diff().splitlines())))
    if asked and not click.confirm("write that?", default=False, err=True):
        output.note("nothing was written")
        return
    if not dry_run:
        for item in changed:
            carry_out(item, remove=remove)
        document["written"] = bool(changed)
    shared = [item for item in planned if in_project(item)]
    context.answer(document, _told(planned, changed, shared, remove=remove, dry_run=dry_run))


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _project(context: Context) -> tuple[str, bool]:
    """The directory of the project, and whether it is known as one: the workspace's top, or that of
    a repository. Else it is where we are."""
    if (place := places.find(context.directory)) is not None:
        return (place.mountpoint if place.mounted else place.base), True
    here = above = os.path.realpath(context.directory)
    while above != "/" and not os.path.exists(os.path.join(above, ".git")):
        above = os.path.dirname(above)
    return (above, True) if above != "/" else (here, False)


def _where(project: str, scope: str, program: str | None, *, statusline: bool) -> Where:
    words = ("cowfs",) if scope == PROJECT else (_program(),)
    if program is not None:
        words = (os.path.abspath(program) if os.sep in program else program,)
    home = places.home_directory()
    return Where(scope, home, project, dict(os.environ), words, statusline)


def _program() -> str:
    """The cowfs command, so that an agent finds it whatever its PATH is."""
    beside = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "cowfs")
    found = shutil.which("cowfs")
    if found is not None:
        return os.path.abspath(found)
    return beside if os.path.exists(beside) else "cowfs"


def _row(item: Plan, in_project: bool) -> dict[str, Any]:
    return {
        "path": item.path,
        "changed": item.changes,
        "hooks": item.hooks,
        "wanted": item.wanted,
        "diff": item.diff(),
        "in_project": in_project,
        "notes": list(item.notes),
    }


def _told(
    planned: list[Plan], changed: list[Plan], shared: list[Plan], *, remove: bool, dry_run: bool
) -> str:
    lines = []
    for item in planned:
        path = output.printable(item.path)
        if item not in changed:
            lines.append(f"{path}: {'has none' if remove else 'has them already'}")
        elif dry_run:
            lines.append(f"{path} would be changed")
        elif item.after is None:
            lines.append(f"{path} is removed: there was nothing else in it")
        else:
            lines.append(f"{path} is {'without them again' if remove else 'changed'}")
        if remove or item not in changed:
            continue
        if item in shared:
            lines.append(
                "  It is a file of the project: git sees it, others who have the project get the"
                " hooks, too, and need cowfs on their PATH."
            )
        lines += [f"  {note}" for note in item.notes]
    return "\n".join(lines)


def _status(context: Context, project: str, agent: str | None) -> None:
    rows = []
    for name in (agent,) if agent else agents.NAMES:
        if agents.settings_of(name) is None and not agent:
            continue
        for scope in (USER, PROJECT):
            where = _where(project, scope, None, statusline=False)
            try:
                found = plan(name, where)
            except AgentSettingsError as error:
                rows.append(
                    {
                        "agent": name,
                        "scope": scope,
                        "state": "unreadable",
                        "path": "",
                        "detail": str(error),
                    }
                )
                continue
            told = [row["path"] for row in rows]  # in the home itself both are the same file
            rows += [
                {"agent": name, "scope": scope, "path": item.path, **_state(item)}
                for item in found
                if item.path not in told
            ]
    lines = [
        f"{row['agent']:<9} {row['scope']:<8} {row['state']:<14}"
        f" {output.printable(row['path'] or row['detail'])}".rstrip()
        for row in rows
    ]
    context.answer({"agents": rows}, "\n".join(lines))


def _state(item: Plan) -> dict[str, str]:
    if not item.ours:
        return {"state": "not installed", "detail": ""}
    if item.hooks == item.ours == item.wanted:
        return {"state": "installed", "detail": ""}
    detail = f"{item.hooks} of {item.wanted} hooks are as this cowfs installs them"
    return {"state": "other version", "detail": detail}
