"""Limits of the system: descriptors, threads, a stopped daemon, two daemons, lost lock files."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from cowfs.client.rpc import Client, ConnectionFailedError, RpcError
from cowfs.daemon import control
from cowfs.errors import StoreDamagedError, StoreLockedError, as_cowfs_error
from cowfs.store.env import open_store
from cowfs.store.snapshot import Reader
from tests.cli.command import Cowfs, kill
from tests.limits.test_full import durable
from tests.mount.calls import NOBODY, in_child
from tests.support.mounting import Mounted, MountRefusedError

Mounting = Callable[..., AbstractContextManager[Mounted]]


@contextmanager
def no_descriptor_left(mount: Mounted) -> Iterator[None]:
    """The daemon cannot open anything while the block runs: connections hold all that it may."""
    limits = resource.prlimit(mount.pid, resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir(f"/proc/{mount.pid}/fd"))
    with ExitStack() as held:
        resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        held.callback(resource.prlimit, mount.pid, resource.RLIMIT_NOFILE, limits)
        for _ in range(highest + 1):
            if code_of(held.enter_context(mount.client()), "status") == "COWFS_LIMIT":
                break
        yield


def code_of(client: Client | Mounted, method: str) -> str:
    """The code of the error of a call, "" when it succeeds."""
    try:
        client.call(method)
    except RpcError as error:
        return str(error.error["code"])
    return ""


def test_out_of_descriptors(base: Path, mounted: Mounting) -> None:
    with mounted(base) as mount:
        top = mount.mountpoint
        durable(top / "f", b"before")
        with no_descriptor_left(mount):
            for _ in range(3):
                assert code_of(mount, "status") == "COWFS_LIMIT"
                assert code_of(mount, "checkpoint") == "COWFS_LIMIT"
            assert (top / "f").read_bytes() == b"before"
            durable(top / "g", b"meanwhile")
            os.rename(top / "g", top / "h")
        mount.checkpoint("afterwards")
        assert (top / "h").read_bytes() == b"meanwhile"


def test_out_of_descriptors_in_the_middle_of_a_command(base: Path, mounted: Mounting) -> None:
    """The connection is there already; a checkpoint needs descriptors for the open file."""
    with mounted(base) as mount, open(mount.mountpoint / "f", "wb", buffering=0) as file:
        file.write(b"one")
        with mount.client() as client:
            client.call("status")
            with no_descriptor_left(mount):
                with pytest.raises(RpcError) as caught:
                    client.call("checkpoint")
                assert caught.value.error["code"] == "COWFS_LIMIT"
                file.write(b"two")  # nobody is held
                os.fsync(file.fileno())
            done = client.call("checkpoint")
        assert done["checkpoint"]["counts"]["created"] == 1
        assert (mount.mountpoint / "f").read_bytes() == b"onetwo"


def test_out_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command is refused, the next one is served (pthread_create(3): EAGAIN)."""
    server = control.ControlServer(tmp_path, {"hello": lambda request: "here"})
    server.start()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with Client(str(tmp_path), timeout=30) as client, pytest.raises(RpcError) as caught:
                client.call("hello")
        assert caught.value.error["code"] == "COWFS_LIMIT"
        assert threading.Thread.start is start
        with Client(str(tmp_path), timeout=30) as client:
            assert client.call("hello") == "here"
    finally:
        server.close()


def test_a_read_only_file_system_is_no_question_of_the_owner() -> None:
    """EROFS: open(2) of the store's lock, for one. To be another user would not help."""
    refused = OSError(errno.EROFS, os.strerror(errno.EROFS), "/mnt/store/owner")
    known = as_cowfs_error(refused)
    assert known.code == "COWFS_PERMISSION"
    assert "/mnt/store/owner" in str(known)
    assert "remount" in known.hint_text
    assert "owner of the workspace" not in known.hint_text


def test_a_full_process_table(cowfs: Cowfs) -> None:
    """`cowfs mount` of a user who may have no further process (RLIMIT_NPROC; not for root)."""
    if os.geteuid() != 0:
        pytest.skip("another user is needed whose processes can be counted, and root to become one")

    def refused() -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        try:
            os.fork()
        except OSError as error:
            known = as_cowfs_error(error)
        else:
            os._exit(1)
        assert known.code == "COWFS_LIMIT"
        thread = threading.Thread(target=lambda: None)
        try:
            thread.start()
        except RuntimeError as error:
            known = as_cowfs_error(error)
        assert "thread" in str(known)

    in_child(refused, uid=NOBODY)


def test_a_stopped_daemon(cowfs: Cowfs) -> None:
    """SIGSTOP: commands say so and name the pid. After SIGCONT all goes on, as after a suspend."""
    (cowfs.top / "project").mkdir()
    cowfs.in_process = True
    cowfs.ok("mount", "project", "--store", "store")
    pid = cowfs.pid(cowfs.top / "store")
    durable(cowfs.top / "project/f", b"before")
    commands = (("status",), ("checkpoint",), ("log",), ("unmount", "--force"))
    os.kill(pid, signal.SIGSTOP)
    try:
        waiting = [
            cowfs.start("-C", "project", *command, "--json", stdout=subprocess.PIPE)
            for command in commands
        ]
        for process in waiting:
            error = json.loads(process.communicate(timeout=60)[0])["error"]
            assert error["code"] == "COWFS_DAEMON_UNREACHABLE"
            assert f"kill -CONT {pid}" in error["message"]
    finally:
        os.kill(pid, signal.SIGCONT)
    cowfs.in_process = True
    assert cowfs.ok("status", cwd=cowfs.top / "project")["health"]["state"] == "ok"
    durable(cowfs.top / "project/f", b"after")
    cowfs.ok("checkpoint", cwd=cowfs.top / "project")
    cowfs.ok("unmount", "project")
    assert (cowfs.top / "project/f").read_bytes() == b"after"


def test_a_stopped_daemon_can_be_killed(cowfs: Cowfs) -> None:
    (cowfs.top / "project").mkdir()
    cowfs.in_process = True
    cowfs.ok("mount", "project", "--store", "store")
    durable(cowfs.top / "project/f", b"kept")
    pid = cowfs.pid(cowfs.top / "store")
    os.kill(pid, signal.SIGSTOP)
    kill(pid, signal.SIGKILL)
    assert cowfs.ok("mount", "project")["cleaned"] is True
    assert (cowfs.top / "project/f").read_bytes() == b"kept"


def test_two_daemons_at_once(base: Path, tmp_path: Path, mounted: Mounting) -> None:
    """The second is refused, also when the first one's lock file was removed."""
    view = tmp_path / "view"
    view.mkdir()
    with mounted(base) as mount:
        for lost in (False, True):
            if lost:
                (mount.store / "owner").unlink()
            with (
                pytest.raises(MountRefusedError) as caught,
                mounted(base, mount.store, view, check=False),
            ):
                pass
            assert caught.value.error["code"] == "COWFS_STORE_LOCKED"
            assert str(mount.pid) in caught.value.error["message"]
            with pytest.raises(StoreLockedError):
                open_store(mount.store, writable=True)
        durable(mount.mountpoint / "f", b"one daemon")
        mount.checkpoint()
    with mounted(base) as mount:  # the lock went with its holder
        assert (mount.mountpoint / "f").read_bytes() == b"one daemon"


def test_a_lost_table_of_readers(base: Path, mounted: Mounting) -> None:
    """Without lock.mdb nobody knows of a reader: reading is refused until the daemon has ended."""
    with mounted(base) as mount:
        durable(mount.mountpoint / "f", b"content")
        (mount.store / "lock.mdb").unlink()
        with pytest.raises(StoreDamagedError, match=rf"lock\.mdb was removed.*{mount.pid}"):
            open_store(mount.store, writable=False)
        assert not (mount.store / "lock.mdb").exists()
        mount.checkpoint("the daemon goes on")
        mount.unmount()
        store = open_store(mount.store, writable=False)
        with Reader(store) as reader:
            assert len(list(reader.scan("checkpoint"))) == 2
        store.close()


def test_a_daemon_that_is_gone_is_not_taken_for_a_stopped_one(tmp_path: Path) -> None:
    server = control.ControlServer(tmp_path, {})
    with Client(str(tmp_path)) as client:
        server.close()
        with pytest.raises(ConnectionFailedError, match=r"closed|reset|Broken pipe"):
            client.call("status")
