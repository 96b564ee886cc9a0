"""`cowfs resume`."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from cowfs.cli import changes as texts
from cowfs.cli import context as opening
from cowfs.cli import output, running
from cowfs.cli.command import Session, command
from cowfs.cli.commands.restore import ask
from cowfs.cli.commands.sessions import short_names
from cowfs.cli.context import Context
from cowfs.cli.continuing import command_line, first_line, quoted
from cowfs.client.places import Place
from cowfs.errors import (
    AgentFailedError,
    AgentMissingError,
    NothingInterruptedError,
    SessionPlaceError,
    SessionRunningError,
)

if TYPE_CHECKING:
    from cowfs.format.sessions import ListeningPort, RunningProcess
    from cowfs.service.sessions.listing import Listed
    from cowfs.service.sessions.resuming import Last
    from cowfs.service.workspace import ReadOnly

_WIDTH = 80
_SHOWN = 10


@dataclass(slots=True)
class _Found:
    """What there is of a session. fault: why the agent cannot go on with its own file, "".
    own_command: the one for that."""

    listed: Listed
    last: Last | None
    fault: str
    own_command: tuple[str, ...]
    title: str
    processes: list[RunningProcess] = field(default_factory=list)
    ports: list[ListeningPort] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    not_set: list[str] = field(default_factory=list)


@command(
    "resume",
    examples=[
        ("cowfs resume", "after a crash or a reboot: what was interrupted"),
        ("cowfs resume --exec", "and start the agent at once"),
        ("cowfs resume 5f0c --code", "with the files as they were at its last checkpoint"),
        ("cowfs resume --dry-run", "only say what would be done"),
    ],
)
@click.argument("name", metavar="[SESSION]", type=Session(), required=False)
@click.option(
    "--code/--no-code",
    default=None,
    help="Restore the files of the session's last checkpoint, or leave them as they are (default).",
)
@click.option(
    "--exec",
    "execute",
    is_flag=True,
    help="Become the agent; what it goes on with is told on stderr (with --json first on stdout).",
)
@click.option("--dry-run", is_flag=True, help="Change nothing, only say what would be done.")
def resume(
    context: Context, name: str | None, code: bool | None, execute: bool, dry_run: bool
) -> None:
    """Go on with an agent's session that a crash, a kill or a reboot has interrupted.

    The workspace is mounted if it is not. The files stay what they are, since nothing of them is
    lost: --code goes back to the session's last checkpoint, which can be undone like any restore.
    The agent goes on with its own conversation if that is whole; with a copy from the store if its
    file is gone or damaged, or if it goes back with the files. Then the command that goes on is
    printed, or executed, in the directory and with the environment of then. Secrets are not
    stored: those that are not set now are named, and so is what ran then and does not any more.
    """
    from cowfs.service.expecting import state_of

    place = _mounted(context, context.locate(), dry_run=dry_run)
    asking = running.is_terminal() and not context.json
    with opening.reading(place, need_base=not dry_run) as workspace:
        listed = _choose(place, workspace, name, asking=asking)
        found = _look(workspace, listed)
        state = state_of(workspace.reader)
    going_back = _goes_back(found, code, asking=asking and not dry_run)
    plan = _plan(found, going_back=going_back)
    if not dry_run:
        expect = state if code is None else ""  # what the question was about
        plan |= _prepare(place, found, going_back=going_back, expect=expect)
    document = {
        "session": found.listed.to_json(),
        "mounted": place.mounted,
        "dry_run": dry_run,
        **plan,
        "environment": _differences(found.environment),
        "not_set": found.not_set,
        "processes": [_process(process) for process in found.processes],
        "ports": [
            {"protocol": port.protocol, "address": port.address, "port": port.port}
            for port in found.ports
        ],
    }
    text = "\n".join(_lines(found, plan, place, dry_run=dry_run))
    directory = plan["cwd"]
    if not dry_run and not os.path.isdir(directory):
        failed = SessionPlaceError(session=found.listed.record.id, path=directory)
        context.answer_failed(document, text, failed)
    if not execute or dry_run:
        context.answer(document, text)
        return
    _must_be_there(plan, found.environment)
    if context.json:
        output.document(document)
    else:
        click.echo(text, err=True)  # stdout is the agent's
    _become(plan, found.environment)


def _mounted(context: Context, place: Place, *, dry_run: bool) -> Place:
    """The workspace, mounted as it was the last time if it is not. Raises what mounting raises."""
    from cowfs.mounts import is_dead

    if dry_run or (place.mounted and not is_dead(place.mountpoint)):
        return place
    from cowfs.api.mounting import Plan, check, start_daemon
    from cowfs.api.unmounting import clean_up
    from cowfs.cli.progress import ProgressLine

    for path in {place.base, place.mountpoint}:
        if clean_up(path):
            output.note(f"cleaned up the dead mount at {path}")
    plan = Plan(
        place.base,
        place.mountpoint,
        place.store,
        allow_other=False,
        automatic=os.environ.get("COWFS_AUTOMATIC", "yes") != "no",
    )
    check(plan, force=True)
    with ProgressLine() as line:
        pid = start_daemon(plan, line.step, line.show)
    output.note(f"mounted {place.mountpoint} (daemon pid {pid})")
    return Place(place.base, place.mountpoint, place.store, mounted=True)


def _choose(place: Place, workspace: ReadOnly, name: str | None, *, asking: bool) -> Listed:
    """The session that is meant. Raises UnknownSessionError, AmbiguousSessionError,
    NothingInterruptedError, SessionRunningError."""
    from cowfs.format.sessions import ACTIVE, family
    from cowfs.service.sessions.listing import ambiguous, find, listed

    rows = listed(workspace.reader)
    if name is not None:
        record = find(workspace.reader, name)
        row = next(row for row in rows if row.record.id == family(record.id))
        if row.state == ACTIVE:
            pid = row.record.pid or "unknown"
            raise SessionRunningError(session=row.record.id, pid=pid)
        return row
    offered = [row for row in rows if row.is_offered]
    if not offered:
        raise NothingInterruptedError(path=place.mountpoint)
    if len(offered) == 1:
        return offered[0]
    at = None
    if asking:
        from cowfs.cli import menus

        names, now = short_names([row.record.id for row in offered]), time.time_ns()
        texts_ = [
            f"{names[row.record.id]}  {row.record.agent}  {output.age(row.record.last, now)}  "
            + (row.record.title or first_line(row.record.prompt, _WIDTH))
            for row in offered
        ]
        at = menus.ask_one(texts_, "go on with which one")
    if at is None:
        raise ambiguous("", [row.record for row in offered])
    return offered[at]


def _look(workspace: ReadOnly, listed: Listed) -> _Found:
    """What is known of a session, and what has become of it."""
    from cowfs import agents
    from cowfs.service.sessions import resuming
    from cowfs.service.sessions.originals import look_at_original

    record = listed.record
    last = resuming.last_of(workspace, record)
    around = last.around if last is not None else None
    agent = agents.get(record.agent)
    return _Found(
        listed,
        last,
        look_at_original(workspace.reader, record).fault,
        agent.resume_command(record.id, os.fsdecode(record.cwd)),
        agent.title,
        resuming.gone_processes(around),
        resuming.gone_ports(around),
        resuming.environment(around.environment if around else (), os.environ),
        resuming.not_set(around.hidden if around else (), os.environ),
    )


def _goes_back(found: _Found, code: bool | None, *, asking: bool) -> bool:
    """Whether the files go back to the last checkpoint."""
    last = found.last
    if last is None or code is False or last.changes == []:
        return False
    if code or not asking:
        return bool(code)
    changed = texts.summary(last.changes) if last.changes is not None else "what cannot be told"
    output.note(
        f"since the last checkpoint of the session, {last.point.id[:8]}, the files changed: "
        f"{changed}"
    )
    return click.confirm("cowfs: restore them to that checkpoint?", default=False, err=True)


def _plan(found: _Found, *, going_back: bool) -> dict[str, Any]:
    """What there is to do: the original goes on, or a copy has to be made."""
    last, record = found.last, found.listed.record
    back_in_it = going_back and last is not None and last.said_since
    copied = bool(found.fault) or back_in_it
    notes = []
    if not (copied or found.own_command):
        where = os.fsdecode(record.transcript) or "where it keeps it"
        notes.append(f"how {found.title} goes on is for you to know; its conversation is {where}")
    return {
        "checkpoint": last.point.id if last is not None else None,
        "code": going_back,
        "copied": copied,
        "why": found.fault or ("it goes back with the files" if back_in_it else ""),
        "changes": None if last is None or last.changes is None else len(last.changes),
        "conversation": None,
        "command": [] if copied else list(found.own_command),
        "before": [],
        "cwd": os.fsdecode(record.cwd),
        "notes": notes,
    }


def _prepare(place: Place, found: _Found, *, going_back: bool, expect: str) -> dict[str, Any]:
    """Restore the files if that is wanted, and have a copy made if one is needed. Returns what is
    different in the plan."""
    plan = _plan(found, going_back=going_back)
    told: dict[str, Any] | None = None
    if going_back:
        params = {
            "checkpoint": plan["checkpoint"],
            "paths": [],
            "exclude": [],
            "volatile": False,
            "conversation": "both" if plan["copied"] else "",
            "expect": expect,
        }
        told = ask(place, "restore", params)["conversation"]
    elif plan["copied"]:
        daemon = opening.connect(place)
        assert daemon is not None
        with daemon:
            answer = daemon.call("session.copy", {"session": found.listed.record.id})
        told = answer["conversation"]
    if told is None:
        return {}
    return {
        "conversation": told,
        "command": told["command"],
        "before": told["before"],
        "cwd": told["cwd"],
        "notes": told["notes"],
    }


def _differences(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment is not so in the present one."""
    return {name: value for name, value in environment.items() if os.environ.get(name) != value}


def _process(process: RunningProcess) -> dict[str, Any]:
    words = process.command.rstrip(b"\0").split(b"\0")
    return {
        "pid": process.pid,
        "command": [os.fsdecode(word) for word in words],
        "cwd": os.fsdecode(process.cwd),
    }


def _lines(found: _Found, plan: dict[str, Any], place: Place, *, dry_run: bool) -> list[str]:
    record, now = found.listed.record, time.time_ns()
    lines = [
        f"session {record.id} of {found.title}: {found.listed.state}, {_age(record.last, now)}"
    ]
    if record.title:
        lines.append(f"  title         {record.title}")
    if record.prompt:
        lines.append(f"  last prompt   {first_line(record.prompt, _WIDTH)}")
    lines.append(f"  files         {_files(found, plan, dry_run=dry_run)}")
    lines.append(f"  conversation  {_conversation(plan, dry_run=dry_run)}")
    if dry_run and not place.mounted:
        lines.append(f"  workspace     would be mounted at {place.mountpoint}")
    lines += _subagents(found, now)
    lines += _around(found)
    lines = [output.printable(line) for line in lines]
    lines += [output.printable(note) for note in plan["notes"]]
    if command := command_line(plan["cwd"], plan["before"], plan["command"]):
        lines += ["continue with", f"    {command}"]
    told = plan["conversation"]
    if told is not None and told["prompt"]:
        lines += ["the prompt was", *quoted(told["prompt"])]
    return lines


def _age(time_ns: int, now: int) -> str:
    return f"last heard of {output.age(time_ns, now)}"


def _files(found: _Found, plan: dict[str, Any], *, dry_run: bool) -> str:
    last = found.last
    if last is None:
        return "as they are; the session has no checkpoint"
    name = f"{last.point.id[:8]}, its last checkpoint"
    if plan["code"]:
        done = "would be restored" if dry_run else "restored"
        return f"{done} to {name}" + ("" if dry_run else "; `cowfs undo` takes that back")
    if last.changes is None:
        return f"as they are; how they differ from {name} cannot be told"
    if not last.changes:
        return f"as they were at {name}"
    return f"as they are: {texts.summary(last.changes)} since {name} (--code goes back to it)"


def _conversation(plan: dict[str, Any], *, dry_run: bool) -> str:
    if not plan["copied"]:
        return "whole: the agent goes on with it"
    made = "would be copied from the store" if dry_run else "a copy from the store"
    return f"{made}, since {plan['why']}"


def _subagents(found: _Found, now: int) -> list[str]:
    lines, waiting = [], [(below, "    ") for below in reversed(found.listed.subagents)]
    while waiting:
        row, margin = waiting.pop()
        record = row.record
        kind = f"  {record.kind}" if record.kind else ""
        name = record.id.partition("/")[2]
        lines.append(f"{margin}{name}{kind}  {row.state}  {output.age(record.last, now)}")
        waiting += [(below, margin + "  ") for below in reversed(row.subagents)]
    return ["  sub-agents", *lines] if lines else []


def _around(found: _Found) -> list[str]:
    """What was there at the last checkpoint, and is not now."""
    lines = []
    if found.processes:
        lines.append("  ran then, and not now")
        for process in found.processes[:_SHOWN]:
            told = _process(process)
            where = f"  (in {told['cwd']})" if told["cwd"] else ""
            lines.append(
                f"    {process.pid}  {first_line(shlex.join(told['command']), _WIDTH)}{where}"
            )
        if (more := len(found.processes) - _SHOWN) > 0:
            lines.append(f"    and {more} more")
    if found.ports:
        lines.append("  was listened to then, and is not now")
        lines += [f"    {p.protocol} {p.address} port {p.port}" for p in found.ports[:_SHOWN]]
    if found.not_set:
        lines.append("  was set then (not stored, it may be secret), and is not now")
        lines.append(f"    {' '.join(found.not_set)}")
    return lines


def _must_be_there(plan: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Raises AgentMissingError for a program that is not there."""
    shown = command_line(plan["cwd"], plan["before"], plan["command"])
    if not shown:
        raise AgentMissingError(program="that goes on with it", command="what you start it with")
    for program, *_ in (*plan["before"], plan["command"]):
        if shutil.which(program, path=environment.get("PATH")) is None:
            raise AgentMissingError(program=program, command=shown)


def _become(plan: dict[str, Any], environment: dict[str, str]) -> None:
    """Run the agent in place of this process. Raises AgentMissingError, AgentFailedError."""
    words, directory = plan["command"], plan["cwd"]
    os.chdir(directory)
    environment["PWD"] = directory
    for line in plan["before"]:
        done = subprocess.run(line, cwd=directory, env=environment, stdout=2, check=False)
        if done.returncode:
            detail = f"it ended with {done.returncode}"
            raise AgentFailedError(command=shlex.join(line), detail=detail)
    output.finish(0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and execve(2) keeps that
    try:
        os.execvpe(words[0], words, environment)
    except OSError as error:
        shown = command_line(directory, plan["before"], words)
        program = f"{words[0]} ({error.strerror})"
        raise AgentMissingError(program=program, command=shown) from None
