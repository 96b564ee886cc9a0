"""`cowfs git`: checkpoints as commits, and notes on commits."""

from __future__ import annotations

import os
from typing import Any

import click

from cowfs.cli import context as opening
from cowfs.cli import output
from cowfs.cli.command import Directory, command, group
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.client.places import Place
from cowfs.service.git.export import DEFAULT_BRANCH, Result
from cowfs.service.git.export import export as make_commits
from cowfs.service.git.notes import DEFAULT_REF
from cowfs.service.git.notes import notes as make_notes
from cowfs.service.git.program import Git


@group(
    "git",
    examples=[
        ("cowfs git export", "checkpoints as commits of the branch cowfs/main"),
        ("cowfs git notes", "say on each commit which checkpoints were made on it"),
        ("git log --graph cowfs/main", "look at them"),
    ],
)
def git() -> None:
    """Bring checkpoints into a git repository. Its index, HEAD, files and hooks are left alone."""


@command(
    "export",
    examples=[
        ("cowfs git export", "what is new, to the branch cowfs/main of the project"),
        ("cowfs git export --every 10", "every tenth checkpoint, and those with a label"),
        ("cowfs git export --repo ~/history.git", "into another repository"),
        ("cowfs git export --all", "also what .gitignore leaves out"),
    ],
)
@click.option(
    "--branch",
    default=DEFAULT_BRANCH,
    show_default=True,
    metavar="NAME",
    help="The branch to make or to continue.",
)
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Only every Nth checkpoint, and those with a label.",
)
@click.option(
    "--repo",
    type=Directory(),
    metavar="DIR",
    help="The repository; by default that at the top of the workspace.",
)
@click.option("--all", "everything", is_flag=True, help="Ignored files, too.")
def export(context: Context, branch: str, every: int, repo: str | None, everything: bool) -> None:
    """Write the checkpoints since the last time as commits of a branch.

    Each commit has the files of its checkpoint, but for `.git` and what the checkpoint's own
    .gitignore files leave out. Its parent is the checkpoint that it was made from. The branch
    points to the newest one that the present state comes from; ends that you restored away from
    are kept below refs/cowfs/.
    """
    place = context.locate()
    repository = _repository(context, place, repo)
    with opening.reading(place) as workspace, ProgressLine() as line:

        def progress(done: int, total: int) -> None:
            line.step("exporting checkpoint", done, total)

        result = make_commits(
            workspace,
            repository,
            branch=branch,
            every=every,
            everything=everything,
            progress=progress,
        )
    _tell(context, result, branch, repository)


def _repository(context: Context, place: Place, repo: str | None) -> Git:
    """Raises GitRepositoryError and others of `Git`; DaemonUnreachableError: in a dead mount git
    would find no repository."""
    if repo is None and (daemon := opening.connect(place)) is not None:
        with daemon:
            pass
    own = place.mountpoint if place.mounted else place.base
    return Git(context.path(repo) if repo is not None else own, os.environ)


def _tell(context: Context, result: Result, branch: str, repository: Git) -> None:
    report = result.report
    document: dict[str, Any] = {
        "repository": repository.directory,
        "branch": branch,
        "commit": result.commit,
        "commits": [{"checkpoint": one, "commit": commit} for one, commit in result.made],
        "files": report.files,
        "bytes": report.bytes_sent,
        "special": report.special,
        "unreadable": [{"path": os.fsdecode(p), "why": why} for p, why in report.unreadable],
        "unreadable_count": report.unreadable_count,
    }
    made = output.plural(len(result.made), "checkpoint")
    text = f"{branch} is at {result.commit[:8]}: {made} exported"
    if not result.made:
        text = f"{branch} is up to date" if result.commit else "no checkpoint to export"
    context.answer(document, text)
    if context.json:
        return
    if report.special:
        what = output.plural(report.special, "socket, pipe or device", "sockets, pipes or devices")
        output.note(f"left out, since git has no such files: {what}")
    for path, why in report.unreadable:
        output.note(f"left out: {os.fsdecode(path)}: {why}")
    if report.unreadable_count > len(report.unreadable):
        output.note(f"and {report.unreadable_count - len(report.unreadable):,} more")


@command(
    "notes",
    examples=[
        ("cowfs git notes", "write them"),
        ("git log --notes=cowfs", "read them"),
    ],
)
@click.option(
    "--ref",
    default=DEFAULT_REF,
    show_default=True,
    metavar="REF",
    help="Where git keeps these notes.",
)
@click.option(
    "--repo",
    type=Directory(),
    metavar="DIR",
    help="The repository; by default that at the top of the workspace.",
)
def notes(context: Context, ref: str, repo: str | None) -> None:
    """Say on each commit which checkpoints were made while it was HEAD.

    On those of the present branch. A note names the first and the last of them. Notes on other
    commits, and other lines of a note, stay as they are.
    """
    place = context.locate()
    repository = _repository(context, place, repo)
    with opening.reading(place, need_base=False) as workspace:
        done = make_notes(workspace, repository, ref=ref)
    text = f"{output.plural(done.written, 'note')} written to {done.ref}"
    document = {
        "repository": repository.directory,
        "ref": done.ref,
        "written": done.written,
        "unchanged": done.unchanged,
    }
    context.answer(document, text if done.written else f"{done.ref} is up to date")


git.add_command(export)
git.add_command(notes)
