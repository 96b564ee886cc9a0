"""Mounting: what is refused, and starting a daemon that outlives this process.

Threading: functions without state but for the list of daemons that this process has started.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cowfs.api.opening import Step, no_step
from cowfs.client import places
from cowfs.client.rpc import RpcError
from cowfs.errors import (
    AlreadyMountedError,
    DestinationExistsError,
    ForbiddenWorkspaceError,
    FuseUnavailableError,
    MountFailedError,
    NestedWorkspaceError,
    NotADirectoryPathError,
    PermissionDeniedError,
    StoreForeignError,
    StoreInsideWorkspaceError,
    UsageError,
)
from cowfs.mounts import mount_fault

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
    if fault := mount_fault(plan.mountpoint):
        detail, advice = fault
        raise FuseUnavailableError(detail=detail, advice=advice)
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
    home = os.path.realpath(places.home_directory())
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


def make_store(plan: Plan) -> None:
    """Make the store's directory. Raises PermissionDeniedError, OSError."""
    try:
        places.make_private(plan.store)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise PermissionDeniedError(
            detail=f"the store {plan.store} cannot be made: {error.strerror} ({error.filename})",
            advice="Name another place with --store PATH. Nothing was changed.",
        ) from None


# -- the daemon -----------------------------------------------------------------------------


_started: set[int] = set()
"""Pids of daemons that are children of this process. One that has ended is a zombie until it is
waited for."""


def reap() -> None:
    """Wait for those daemons that this process has started and that have ended."""
    for pid in list(_started):
        try:
            ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:  # another one has waited for it, or this process was forked
            ended = True
        if ended:
            _started.discard(pid)


def start_daemon(plan: Plan, step: Step = no_step, say: Callable[[str], object] = str) -> int:
    """Start a daemon that outlives this process; returns its pid when the mount answers.

    step: told how far an upgrade of the store is. say: told what is waited for.
    Raises MountFailedError, and RpcError with what the daemon itself has said.
    """
    reap()
    log = os.path.join(plan.store, "daemon.out")
    ready, tell = os.pipe()
    try:
        with open(log, "ab", opener=places.for_us_alone) as out:
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
        line = _wait(ready, step, say)
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
        process.wait()
        raise RpcError(answer["error"])
    process.returncode = 0  # it outlives this process: Popen must not wait for it
    _started.add(process.pid)
    return int(answer["pid"])


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


def _wait(ready: int, step: Step, say: Callable[[str], object]) -> bytes | None:
    """The line from the daemon, b"" when it ended without one, None when the time is up."""
    started = time.monotonic()
    received = b""
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    while True:
        first, found, rest = received.partition(b"\n")
        if found:
            message = json.loads(first)
            if "phase" not in message:
                return first
            step(message["phase"], message["done"], message["total"])
            received, started = rest, time.monotonic()
            continue
        waited = time.monotonic() - started
        if waited > _READY_SECONDS:
            return None
        if waited > _SILENT_SECONDS:
            say("waiting for the daemon; it may have an interrupted apply to finish")
        if not poll.poll(_SILENT_SECONDS * 1000):
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
