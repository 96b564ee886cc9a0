"""`cowfs restore`, `cowfs undo`, `cowfs redo`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from cowfs.api import offline
from cowfs.cli import context as opening
from cowfs.cli import output, running
from cowfs.cli.command import Checkpoint, FilePath, Session, command
from cowfs.cli.context import Context
from cowfs.client.places import Place
from cowfs.errors import UnknownCheckpointError, UsageError

CODE, CONVERSATION, BOTH = "code", "conversation", "both"
_METHOD = {CODE: "", CONVERSATION: "only", BOTH: "both"}
"""The parameter `conversation` of the daemon's `restore`."""
_MOST_PROMPTS = 20


@command(
    "restore",
    examples=[
        ("cowfs restore 3f2a9c1b", "everything"),
        ("cowfs restore @~1 src/main.c docs", "only these, from the last checkpoint"),
        ('cowfs restore "@{10 minutes ago}"', "the last checkpoint before then"),
        ("cowfs restore tests-pass --exclude .venv", "but for what matches"),
        ("cowfs restore tests-pass --dry-run", "only say what would change"),
        ("cowfs restore", "choose from the prompts of an agent's session"),
        ("cowfs restore 3f2a9c1b --both", "the files, and the agent's conversation"),
        ("cowfs restore 3f2a9c1b --expect 9c1b", "only if nothing changed since 9c1b"),
    ],
)
@click.argument("checkpoint", type=Checkpoint(), required=False)
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=FilePath())
@click.option("--dry-run", is_flag=True, help="Change nothing, list what would change.")
@click.option("--code", is_flag=True, help="The files only: what is done where nobody is asked.")
@click.option("--conversation", is_flag=True, help="The agent's conversation only, as a copy.")
@click.option("--both", is_flag=True, help="The files and the conversation, or neither.")
@click.option(
    "--expect",
    type=Checkpoint(),
    metavar="STATE",
    help="Only if the workspace is still what it was at STATE: a checkpoint, or what --dry-run or"
    " `status` print as `state`.",
)
@click.option(
    "--session",
    type=Session(),
    metavar="ID",
    help="Whose prompts to choose from, without CHECKPOINT.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave paths or names that match alone (* ? []); may be repeated.",
)
@click.option(
    "--volatile", is_flag=True, help="Also what is volatile (`cowfs config volatile.paths`)."
)
def restore(
    context: Context,
    checkpoint: str | None,
    paths: tuple[str, ...],
    dry_run: bool,
    code: bool,
    conversation: bool,
    both: bool,
    expect: str | None,
    session: str | None,
    exclude: tuple[str, ...],
    volatile: bool,
) -> None:
    """Make the workspace, or only some paths of it, what it was at a checkpoint.

    Nothing is lost: the state before becomes a checkpoint of its own, to which `cowfs undo` goes
    back. What did not change keeps its inode and its times; open files stay usable. CHECKPOINT is
    an id, a label, @~N or @{TIME}.

    A checkpoint that was made in an agent's session knows the conversation up to then; that of a
    prompt is the state before the prompt. The conversation is never changed: what it was then is
    written as a copy, and the command that goes on with it is printed. On a terminal you are asked
    which of both you want; without CHECKPOINT you choose from the prompts of the session.
    """
    place = context.locate_paths(paths)
    what = _choice(code=code, conversation=conversation, both=both)
    inside = [context.inside(place, path) for path in paths]
    if "" in inside:
        inside = []
    if expect == "":
        raise UnknownCheckpointError(selector=expect)
    if what == CONVERSATION and (inside or exclude):
        raise UsageError(detail="a conversation has no paths", command="restore")
    if dry_run and expect:
        raise UsageError(detail="--expect is for a restore, not for --dry-run", command="restore")
    asking = running.is_terminal() and not context.json and not dry_run
    if checkpoint is None:
        if not asking:
            detail = "name a checkpoint; `cowfs log` lists them"
            raise UsageError(detail=detail, command="restore")
        checkpoint, state = _choose_prompt(place, session)
        expect = expect or state
    if (
        checkpoint is not None
        and asking
        and not (what or inside)
        and _has_conversation(place, checkpoint)
    ):
        from cowfs.cli import menus

        what = menus.ask_what()
        checkpoint = checkpoint if what else None
    if checkpoint is None:
        output.note("nothing was changed")
        return
    if dry_run:
        _preview(context, place, checkpoint, inside, exclude, volatile=volatile, what=what or CODE)
        return
    params = {
        "checkpoint": checkpoint,
        "paths": inside,
        "exclude": list(exclude),
        "volatile": volatile,
        "conversation": _METHOD[what or CODE],
        "expect": expect or "",
    }
    _run(context, place, "restore", params)


def _choice(*, code: bool, conversation: bool, both: bool) -> str:
    """What the options ask for, "" if there are none."""
    chosen = [
        name for name, given in ((CODE, code), (CONVERSATION, conversation), (BOTH, both)) if given
    ]
    if len(chosen) > 1:
        detail = "only one of --code, --conversation and --both can be meant"
        raise UsageError(detail=detail, command="restore")
    return chosen[0] if chosen else ""


def _has_conversation(place: Place, selector: str) -> bool:
    from cowfs.service.sessions import reading

    with opening.reading(place, need_base=False) as workspace:
        point = workspace.point(selector).checkpoint
        found = reading.context(workspace.reader, point.id) if point is not None else None
        return found is not None and bool(found.marks)


def _choose_prompt(place: Place, name: str | None) -> tuple[str | None, str]:
    """(checkpoint before a prompt, name of the present state); the first is None for none."""
    from cowfs import agents
    from cowfs.cli import menus
    from cowfs.service.expecting import state_of
    from cowfs.service.sessions.listing import find, listed
    from cowfs.service.sessions.prompts import prompts

    with opening.reading(place) as workspace:
        state = state_of(workspace.reader)
        name = name or os.environ.get("COWFS_SESSION")
        if name:
            sessions = [find(workspace.reader, name)]
        else:
            sessions = [row.record for row in listed(workspace.reader) if row.checkpoints]
        for session in sessions:
            found, more = prompts(workspace, session.id, _MOST_PROMPTS)
            if found:
                break
        else:
            detail = "there are no prompts to choose from: name a checkpoint (`cowfs log`)"
            raise UsageError(detail=detail, command="restore")
    others = " (others: --session ID)" if len(sessions) > 1 else ""
    title = f"{agents.get(session.agent).title}, session {session.id[:8]}{others}"
    older = f"; `cowfs log --session {session.id[:8]}` has older ones" if more else ""
    chosen = menus.ask_prompt(
        found, f"prompts in {title}, the newest first, and what changed after each{older}"
    )
    return (chosen.point.id if chosen is not None else None), state


@command("undo", examples=[("cowfs undo", "after a restore that was wrong")])
def undo(context: Context) -> None:
    """Take the last restore back: the workspace is again what it was before.

    What was done since then becomes a checkpoint, to which `cowfs redo` goes. It is about files: a
    copy of a conversation that a restore has made stays, beside the original.
    """
    _run(context, context.locate(), "undo", {})


@command("redo", examples=[("cowfs redo", "after an undo that was wrong")])
def redo(context: Context) -> None:
    """Take the last undo back."""
    _run(context, context.locate(), "redo", {})


def _run(context: Context, place: Place, operation: str, params: dict[str, Any]) -> None:
    answer = ask(place, operation, params)
    context.answer(answer, text(answer, params.get("paths", [])))


def ask(place: Place, operation: str, params: dict[str, Any]) -> dict[str, Any]:
    """Have it done, by the daemon if there is one. Raises RpcError, CowfsError."""
    daemon = opening.connect(place)
    if daemon is None:
        with opening.writing(place) as engine:
            return offline.restore(engine, opening.author(), operation, params)
    with daemon:
        answer: dict[str, Any] = daemon.call(operation, params)
        return answer


def text(answer: dict[str, Any], paths: list[str]) -> str:
    """What was done, for people. paths: those that were named."""
    target, rescue, operation = answer["checkpoint"], answer["rescue"], answer["operation"]
    told = answer.get("conversation")
    about = target["label"] or target["message"].partition("\n")[0]
    name = f"{target['id'][:8]}{f' ({about})' if about else ''}"
    lines = []
    if rescue is not None:
        what = f"{output.plural(len(paths), 'path')} of " if paths else ""
        done = "restored" if operation == "restore" else f"{operation}: restored"
        lines.append(f"{done} {what}{name}: {output.plural(answer['changed'], 'thing')} changed")
        back = "redo" if operation == "undo" else "undo"
        stays = " (the copy of the conversation stays)" if told is not None else ""
        lines.append(
            f"the state before is checkpoint {rescue['id'][:8]}; `cowfs {back}` goes to it{stays}"
        )
    if left := answer["left_alone"]:
        names = ", ".join(output.printable(item) for item in left)
        lines.append(f"volatile, left alone: {names} (restore --volatile has them, too)")
    if told is not None:
        from cowfs.cli import continuing

        where = f"the conversation as it was at {name} is session {told['session']}, a copy"
        lines.append(where if rescue is not None else f"{where}; the files are as they were")
        return "\n".join([*map(output.printable, lines), *continuing.lines(told)])
    return "\n".join(map(output.printable, lines))


def _preview(
    context: Context,
    place: Place,
    selector: str,
    paths: list[str],
    exclude: tuple[str, ...],
    *,
    volatile: bool,
    what: str,
) -> None:
    from cowfs.cli.changes import lines
    from cowfs.format import records
    from cowfs.service.diff import count
    from cowfs.service.expecting import state_of
    from cowfs.service.preview import preview
    from cowfs.service.sessions.conversation import planned

    with opening.reading(place) as workspace:
        found = preview(
            workspace,
            Path(place.store),
            selector,
            [os.fsencode(path) for path in paths],
            [os.fsencode(pattern) for pattern in exclude],
            volatile=volatile,
        )
        changes = found.changes if what != CONVERSATION else []
        told: dict[str, Any] | None = None
        if what != CODE:
            _, _, continuation = planned(workspace.reader, found.checkpoint)
            told = {
                "origin": continuation.origin,
                "agent": continuation.agent,
                "prompt": continuation.prompt,
                "complete": continuation.complete,
                "notes": list(continuation.notes),
            }
        document = {
            "operation": "restore",
            "dry_run": True,
            "state": state_of(workspace.reader),
            "checkpoint": records.to_dict(found.checkpoint),
            "rescue": None,
            "changed": len(changes),
            "left_alone": list(found.left),
            "conversation": told,
            "counts": count(changes),
            "changes": [change.to_json() for change in changes],
        }
        shown = [f"would restore {found.target.name}: {output.plural(len(changes), 'change')}"]
        shown += lines(changes)
        if told is not None:
            shown.append(f"would copy the conversation of session {told['origin']} up to it")
        context.answer(document, "\n".join(shown))
