"""`cowfs mount`: checks what can be checked without changing anything, then starts the daemon."""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import click

from cowfs.cli import detaching, output
from cowfs.cli.command import Directory, Size, command
from cowfs.cli.context import Context
from cowfs.cli.progress import ProgressLine
from cowfs.client import places
from cowfs.errors import (
    AlreadyMountedError,
    DestinationExistsError,
    ForbiddenWorkspaceError,
    MountFailedError,
    NestedWorkspaceError,
    NotADirectoryPathError,
    StoreForeignError,
    StoreInsideWorkspaceError,
    UsageError,
)

_READY_SECONDS = 600.0
"""How long a daemon may take to mount, or be silent about an upgrade of its store. It is a fraction
of a second, unless it has an interrupted apply to finish first."""

_SILENT_SECONDS = 2.0
"""After this long a terminal is told what is waited for."""

_STORE_FILES = frozenset(
    {"data.mdb", "lock.mdb", "owner", "workspace.json", "daemon.log", "daemon.out", "daemon.pid"}
    | {"reserve", "config.toml", "config.toml.lock"}
    | {"data.mdb.new", "data.mdb.new-lock", "data.mdb.version-1"}
)
"""What an interrupted creation leaves, among others."""


@dataclass(frozen=True)
class Plan:
    """What to mount. Absolute paths without symbolic links."""

    base: str
    mountpoint: str
    store: str
    allow_other: bool
    restart: bool = False
    quota: int | None = None
    seal_rate: float = 0.0
    cache_inodes: int = 65536
    automatic: bool = True

    @property
    def in_place(self) -> bool:
        """Whether it is mounted over the directory itself."""
        return self.base == self.mountpoint

    @property
    def config(self) -> dict[str, Any]:
        """The daemon's configuration."""
        return {
            "base": self.base,
            "mountpoint": self.mountpoint,
            "store": self.store,
            "allow_other": self.allow_other,
            "restart": self.restart,
            "quota": self.quota,
            "seal_rate": self.seal_rate,
            "cache_inodes": self.cache_inodes,
            "automatic": self.automatic,
        }


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
        if detaching.clean_up(place):
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
    os.makedirs(plan.store, mode=0o700, exist_ok=True)
    if foreground:
        _serve(context, plan, cleaned)
        return
    started = time.perf_counter()
    pid = start_daemon(plan)
    seconds = time.perf_counter() - started
    _announce(context, plan, pid, seconds, cleaned)
    if plan.in_place and not context.json and places.is_below(context.here, plan.base):
        output.note(
            'this shell still works in the directory below the mount: `cd "$PWD"` enters it'
        )


def _announce(context: Context, plan: Plan, pid: int, seconds: float, cleaned: bool) -> None:
    places.register(plan.base, plan.mountpoint, plan.store)
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


def default_store(base: str) -> str:
    """The directory of a workspace's store when none is named."""
    from hashlib import sha256

    # A name of its own that is plain everywhere; the hash tells two of them apart.
    name = "".join(c if c.isalnum() or c in "-._" else "_" for c in os.path.basename(base))
    name = name.encode("ascii", "replace").decode().replace("?", "_")[:64] or "root"
    tag = sha256(os.fsencode(base)).hexdigest()[:8]
    return os.path.join(os.path.realpath(places.data_directory()), "stores", f"{name}-{tag}")


def check(plan: Plan, *, force: bool) -> None:
    """Refuse what cannot work or would do harm; looks only. Raises CowfsError."""
    _check_mounted(plan)
    for path in (plan.base, plan.mountpoint):
        if not _is_directory(path):
            raise NotADirectoryPathError(path=path)
    if not force:
        _check_forbidden(plan.base)
    _check_store(plan)
    _check_nested(plan)
    if not plan.in_place and os.listdir(plan.mountpoint):
        raise UsageError(
            detail=f"{plan.mountpoint} is not empty; --at takes an empty directory",
            command="mount",
        )


def _is_directory(path: str) -> bool:
    """Raises PermissionError when that cannot be seen."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _check_mounted(plan: Plan) -> None:
    for mountpoint, store in places.mounts():
        other = places.base_of(store)
        if store == plan.store and other not in (None, plan.base):
            raise StoreForeignError(store=store, other=other, path=plan.base)
        if mountpoint in (plan.base, plan.mountpoint) or store == plan.store:
            raise AlreadyMountedError(
                path=mountpoint if mountpoint == plan.mountpoint else plan.base, pid=_pid(store)
            )


def _pid(store: str) -> str:
    """The pid that a daemon has noted in its store."""
    try:
        with open(os.path.join(store, "daemon.pid"), encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return "unknown"


def _check_forbidden(base: str) -> None:
    home = os.path.realpath(os.path.expanduser("~"))
    what = ""
    if base == "/":
        what = "the root directory"
    elif base == home:
        what = "your home directory"
    elif places.is_below(home, base):
        what = "above your home directory"
    if what:
        raise ForbiddenWorkspaceError(path=base, what=what)


def _check_store(plan: Plan) -> None:
    for path in (plan.base, plan.mountpoint):
        if places.is_below(plan.store, path):
            raise StoreInsideWorkspaceError(store=plan.store, path=path)
        if places.is_below(path, plan.store):
            raise ForbiddenWorkspaceError(path=path, what=f"inside the store {plan.store}")
    try:
        found = set(os.listdir(plan.store))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise DestinationExistsError(path=plan.store) from None
    if found and "data.mdb" not in found and not found <= _STORE_FILES:
        raise DestinationExistsError(path=plan.store)


def _check_nested(plan: Plan) -> None:
    """Neither the base nor the mountpoint may be inside or around another mounted workspace."""
    others = set()
    for mountpoint, store in places.mounts():
        others |= {mountpoint, places.base_of(store) or mountpoint}
    if not plan.in_place and places.is_below(plan.mountpoint, plan.base):
        raise NestedWorkspaceError(path=plan.mountpoint, relation="lies inside", other=plan.base)
    for path in (plan.base, plan.mountpoint):
        for other in sorted(others):
            if places.is_below(path, other):
                raise NestedWorkspaceError(path=path, relation="lies inside", other=other)
            if places.is_below(other, path):
                raise NestedWorkspaceError(path=path, relation="contains", other=other)


# -- the daemon -----------------------------------------------------------------------------


def start_daemon(plan: Plan) -> int:
    """Start a daemon that outlives this command; returns its pid when the mount answers.

    Raises MountFailedError, and RpcError with what the daemon itself has said.
    """
    log = os.path.join(plan.store, "daemon.out")
    ready, tell = os.pipe()
    try:
        with open(log, "ab", opener=_for_us_alone) as out:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cowfs.daemon", json.dumps(plan.config), str(tell)],
                cwd="/",
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                pass_fds=(tell,),
            )
    except OSError as error:
        os.close(ready)
        raise MountFailedError(
            path=plan.base, detail=f"the daemon cannot be started: {error}", log=log
        ) from None
    finally:
        os.close(tell)
    try:
        line = _wait(ready)
    except BaseException:
        _end(process)
        raise
    finally:
        os.close(ready)
    if line is None:
        _end(process)
        detail = f"the daemon gave no answer in {_READY_SECONDS:.0f} s"
        raise MountFailedError(path=plan.base, detail=detail, log=log)
    if not line:
        detail = f"the daemon ended ({_ending(process)}){_last_lines(log)}"
        raise MountFailedError(path=plan.base, detail=detail, log=log)
    answer = json.loads(line)
    if not answer["ok"]:
        from cowfs.client.rpc import RpcError

        process.wait()
        raise RpcError(answer["error"])
    process.returncode = 0  # it outlives this command: nobody waits for it
    return int(answer["pid"])


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _environment() -> dict[str, str]:
    """What the daemon needs of this process's environment; it finds the same package there.

    The daemon works in / and without the working directory in its search path.
    """
    from cowfs.daemon.surroundings import reduced

    env = reduced(dict(os.environ))
    parts = [os.path.abspath(part) for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if package not in sys.path[1:]:
        parts.insert(0, package)
    if parts:
        env["PYTHONPATH"] = os.pathsep.join(parts)
    return env


def _wait(ready: int) -> bytes | None:
    """The line from the daemon, b"" when it ended without one, None when the time is up."""
    started = time.monotonic()
    received = b""
    with ProgressLine() as line:
        while True:
            first, found, rest = received.partition(b"\n")
            if found:
                message = json.loads(first)
                if "phase" not in message:
                    return first
                line.step(message["phase"], message["done"], message["total"])
                received, started = rest, time.monotonic()
                continue
            waited = time.monotonic() - started
            if waited > _READY_SECONDS:
                return None
            if waited > _SILENT_SECONDS:
                line.show("waiting for the daemon; it may have an interrupted apply to finish")
            if not select.select([ready], [], [], _SILENT_SECONDS)[0]:
                continue
            piece = os.read(ready, 65536)
            if not piece:
                return b""
            received += piece


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ending(process: subprocess.Popen[bytes]) -> str:
    code = process.wait()
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _last_lines(log: str) -> str:
    """The end of what the daemon printed, for an error message."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - 4000))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    kept = [line.strip() for line in lines if line.strip()][-3:]
    return ": " + " / ".join(kept) if kept else ""


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
