"""Mounting a workspace in a daemon of its own, and getting rid of both whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cowfs
from cowfs.client.places import mounts
from cowfs.client.rpc import Client
from tests.support.checking import check_store

DAEMON = "cowfs.daemon"
"""The module that is run."""
_READY_SECONDS = 30
_END_SECONDS = 30
_ROOT = Path(cowfs.__file__).resolve().parent.parent


def fuse_missing() -> str:
    """Why nothing can be mounted here, "" when it can."""
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is closed to this user"
    return ""


class MountRefusedError(Exception):
    """The daemon would not mount; `error` is the JSON form of its CowfsError."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("message", "no answer"))
        self.error = error


class Mounted:
    """A live mount.

    base: the directory it was made from (hidden by the mount when `in_place`). mountpoint, store,
    pid of the daemon. process: its Popen, to wait for it. mounts_before: how many mounts there
    were at the mountpoint already. log_start: where this life's part of the log begins.
    """

    def __init__(
        self, base: Path, mountpoint: Path, store: Path, process: subprocess.Popen[bytes]
    ) -> None:
        self.base = base
        self.mountpoint = mountpoint
        self.store = store
        self.process = process
        self.pid = process.pid
        self.mounts_before = 0
        self.log_start = 0

    @property
    def in_place(self) -> bool:
        return self.base == self.mountpoint

    def client(self) -> Client:
        """A new connection to the control socket; the caller closes it (`with`)."""
        return Client(str(self.store), timeout=60)

    def call(self, method: str, **params: Any) -> Any:
        """One call on a connection of its own. Raises RpcError, ConnectionFailedError."""
        with self.client() as client:
            return client.call(method, params)

    def checkpoint(self, message: str = "", label: str = "") -> str:
        """Make a checkpoint; returns its id."""
        answer = self.call("checkpoint", message=message, label=label)
        return str(answer["checkpoint"]["id"])

    def restore(self, checkpoint: str) -> Any:
        """Go to a checkpoint."""
        return self.call("restore", checkpoint=checkpoint)

    def log(self) -> str:
        """The daemon's log so far, without that of earlier lives."""
        path = self.store / "daemon.log"
        if not path.exists():
            return ""
        return path.read_bytes()[self.log_start :].decode("utf-8", "replace")

    def is_mounted(self) -> bool:
        """Whether the kernel has the mount."""
        return _count(self.mountpoint) > self.mounts_before

    def kill(self) -> None:
        """As a crash does: SIGKILL, nothing is committed. The dead mount stays in the kernel."""
        self.process.kill()
        self.process.wait()

    def unmount(self, *, apply: bool = False) -> Any:
        """Unmount as `cowfs unmount` does, and wait for the daemon's end."""
        answer = self.call("unmount", apply=apply)
        if (code := self.process.wait(_END_SECONDS)) != 0:
            raise AssertionError(f"the daemon ended with {code}:\n{self.log()}")
        return answer


@contextlib.contextmanager
def mounted(
    base: Path,
    store: Path | None = None,
    at: Path | None = None,
    *,
    check: bool = True,
    automatic: bool = False,
) -> Iterator[Mounted]:
    """Mount `base` at `at` (over itself by default) while the block runs.

    store: by default `<base>.store` beside the base directory. automatic: whether the daemon makes
    checkpoints by itself. The block may kill the daemon or
    unmount by itself. Afterwards the daemon is gone and nothing is mounted, also when the
    test failed; with `check`, after a test that did not fail, the store is verified and the
    daemon's log must have no error. Raises MountRefusedError.
    """
    base = base.resolve()
    mountpoint = base if at is None else at.resolve()
    store = base.with_name(base.name + ".store") if store is None else store.resolve()
    mounts_before, log = _count(mountpoint), store / "daemon.log"
    log_start = log.stat().st_size if log.exists() else 0
    process = _start(base, mountpoint, store, automatic=automatic)
    mount = Mounted(base, mountpoint, store, process)
    mount.mounts_before, mount.log_start = mounts_before, log_start
    guard = _start_guard(process.pid, mountpoint)
    try:
        _wait_ready(mount)
        yield mount
        if check and process.poll() is None:
            process.terminate()
            if (code := process.wait(_END_SECONDS)) != 0:
                raise AssertionError(f"the daemon ended with {code}:\n{mount.log()}")
    finally:
        _end(mount)
        guard.communicate(b"done\n")
    if check:
        errors = [line for line in mount.log().splitlines() if _is_error(line)]
        if errors:
            raise AssertionError("errors in the daemon's log:\n" + mount.log())
        base_fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            check_store(store, base_fd)
        finally:
            os.close(base_fd)


def _start(
    base: Path, mountpoint: Path, store: Path, *, automatic: bool
) -> subprocess.Popen[bytes]:
    places = {"base": str(base), "mountpoint": str(mountpoint), "store": str(store)}
    config = {**places, "automatic": automatic}
    ready, tell = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", DAEMON, json.dumps(config), str(tell)],
            pass_fds=(tell,),
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(tell)
    _ready_pipes[process.pid] = ready
    return process


# Waits until the tests are done with a daemon. When they end without saying so (killed, or ended
# by a time limit), it ends the daemon and removes the mount.
_GUARD = """
read -r word
[ "$word" = done ] && exit
kill -TERM "$1"; sleep 5; kill -KILL "$1"; umount -l -- "$2" || fusermount3 -uz -- "$2"
"""


def _start_guard(pid: int, mountpoint: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["sh", "-c", _GUARD, "guard", str(pid), str(mountpoint)],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


_ready_pipes: dict[int, int] = {}
"""Read ends of the pipes on which daemons that were just started will answer, by pid."""


def _wait_ready(mount: Mounted) -> None:
    ready = _ready_pipes.pop(mount.pid)
    answer = b""
    try:
        while not answer.endswith(b"\n"):
            if not select.select([ready], [], [], _READY_SECONDS)[0]:
                raise MountRefusedError({"message": "the daemon did not get ready in time"})
            piece = os.read(ready, 65536)
            if not piece:
                break
            answer += piece
    finally:
        os.close(ready)
    message: dict[str, Any] = json.loads(answer) if answer else {"ok": False, "error": {}}
    if not message["ok"]:
        raise MountRefusedError(message["error"])


def _end(mount: Mounted) -> None:
    """End the daemon by its pid and remove the kernel's mount, politely first."""
    pipe = _ready_pipes.pop(mount.pid, None)
    if pipe is not None:
        os.close(pipe)
    process = mount.process
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        remove_mounts(mount.mountpoint, leave=mount.mounts_before)


def _count(mountpoint: Path) -> int:
    return sum(at == str(mountpoint) for at, _ in mounts())


def remove_mounts(mountpoint: Path, leave: int = 0) -> None:
    """Detach the cowfs mounts at a mountpoint, dead or alive, but for the first `leave`."""
    tool = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
    while _count(mountpoint) > leave:
        subprocess.run([*tool, "--", str(mountpoint)], check=True, capture_output=True)


def _is_error(line: str) -> bool:
    """Whether a line of the log tells of a defect; a second daemon that was refused does not."""
    if ": cannot mount: " in line:
        return False
    return " ERROR " in line or " CRITICAL " in line or line.startswith("Traceback")
