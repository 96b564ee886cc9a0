"""`cowfs mount`: checks what can be checked without changing anything, then starts the daemon."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

from cowfs.api.mounting import Plan, check, default_store, make_store, start_daemon
from cowfs.api.unmounting import clean_up
from cowfs.cli import output
from cowfs.cli.command import Directory, Size, command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.client import places


@command(
    "mount",
    examples=[
        ("cowfs mount .", "record everything in the working directory"),
        ("cowfs mount project --store /big/disk/project", "keep the history elsewhere"),
        ("cowfs mount project --seal", "and save in the background what only the directory has"),
        ("cowfs mount project --at view", "leave the directory as it is, work in view"),
    ],
)
@click.argument("directory", metavar="DIR", type=Directory())
@click.option("--store", type=Directory(), metavar="PATH", help="Where the history is kept.")
@click.option(
    "--at",
    "mountpoint",
    type=Directory(),
    metavar="MOUNTPOINT",
    help="Mount on this empty directory instead of over DIR.",
)
@click.option(
    "--quota",
    type=Size(),
    metavar="SIZE",
    help="How much the store may hold, as 500M or 20G; none for no limit. It is remembered.",
)
@click.option("--restart", is_flag=True, help="Start the daemon again when it is killed.")
@click.option("--foreground", is_flag=True, help="Serve in this process, log to the terminal.")
@click.option("--allow-other", is_flag=True, help="Let other users of the machine in.")
@click.option("--seal", is_flag=True, help="Save what only DIR has, while nobody uses the mount.")
@click.option(
    "--seal-rate",
    type=click.FloatRange(min=0.0, min_open=True),
    default=20.0,
    show_default=True,
    metavar="MB/s",
    help="How fast --seal reads at most.",
)
@click.option(
    "--cache-inodes",
    type=click.IntRange(min=1),
    default=65536,
    show_default=True,
    metavar="N",
    help="How many files the daemon keeps in memory; 1,000 take about 1 MB.",
)
@click.option(
    "--automatic/--no-automatic",
    default=True,
    envvar="COWFS_AUTOMATIC",
    help="Make checkpoints by itself, as `cowfs config` says (default).",
)
@click.option("--force", is_flag=True, help="Mount even / or the home directory.")
def mount(
    context: Context,
    directory: str,
    store: str | None,
    mountpoint: str | None,
    restart: bool,
    foreground: bool,
    allow_other: bool,
    quota: int | None,
    seal: bool,
    seal_rate: float,
    cache_inodes: int,
    automatic: bool,
    force: bool,
) -> None:
    """Mount DIR over itself: from then on, everything that happens in it is recorded.

    Ready in a fraction of a second whatever the size of the tree. DIR itself is not written until
    it is unmounted. The history is kept in a store, by default below ~/.local/share/cowfs. Mounting
    again after a crash or a reboot is all it takes; a dead mount is cleaned up first.
    """
    base = context.path(directory)
    target = context.path(mountpoint) if mountpoint is not None else base
    cleaned = False
    for place in {base, target}:
        if clean_up(place):
            cleaned = True
            output.note(f"cleaned up the dead mount at {place}")
    registered = places.registered_store(base)
    if store is not None:
        kept = context.path(store)
    else:
        kept = registered or default_store(base)
    rate = seal_rate * 1e6 if seal else 0.0
    plan = Plan(base, target, kept, allow_other, restart, quota, rate, cache_inodes, automatic)
    check(plan, force=force)
    if registered not in (None, kept) and os.path.exists(os.path.join(registered, "data.mdb")):
        output.note(f"the history so far stays in {registered}, this mount does not show it")
    make_store(plan)
    if foreground:
        _serve(context, plan, cleaned)
        return
    started = time.perf_counter()
    with ProgressLine() as line:
        pid = start_daemon(plan, line.step, line.show)
    seconds = time.perf_counter() - started
    _announce(context, plan, pid, seconds, cleaned)
    if plan.in_place and not context.json and places.is_below(context.here, plan.base):
        output.note(
            'this shell still works in the directory below the mount: `cd "$PWD"` enters it'
        )


def _announce(context: Context, plan: Plan, pid: int, seconds: float, cleaned: bool) -> None:
    try:
        places.register(plan.base, plan.mountpoint, plan.store)
    except OSError as error:
        why = f"{error.strerror} ({error.filename or places.data_directory()})"
        output.note(
            f"where the store is cannot be noted: {why}. While it is not mounted no command finds"
            f" it; mount it again with --store {plan.store}"
        )
    document = {
        "workspace": plan.base,
        "mountpoint": plan.mountpoint,
        "store": plan.store,
        "pid": pid,
        "seconds": seconds,
        "cleaned": cleaned,
    }
    at = f" at {plan.mountpoint}" if not plan.in_place else ""
    text = f"mounted {plan.base}{at} in {seconds:.2f} s (daemon pid {pid}, store {plan.store})"
    context.answer(document, output.printable(text))
    sys.stdout.flush()


def _serve(context: Context, plan: Plan, cleaned: bool) -> None:
    """Be the daemon; ends when the workspace is unmounted."""
    from cowfs.daemon.notifying import notify_ready
    from cowfs.daemon.process import Config, serve

    started = time.perf_counter()
    refused: list[dict[str, Any]] = []

    def tell(answer: dict[str, Any]) -> None:
        line.clear()
        if answer["ok"]:
            _announce(context, plan, answer["pid"], time.perf_counter() - started, cleaned)
            notify_ready()
        else:
            refused.append(answer["error"])

    with ProgressLine() as line:
        code = serve(Config(**plan.config), tell, foreground=True, progress=line.step)
    if refused:
        from cowfs.client.rpc import RpcError

        raise RpcError(refused[0])
    if code:
        raise click.exceptions.Exit(code)
