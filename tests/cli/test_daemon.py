"""The daemon as a process: what it takes over from whoever starts it, and whom it listens to."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
from pathlib import Path

import pytest

from cowfs.client.rpc import Client, ConnectionFailedError, RpcError
from tests.cli.command import Cowfs
from tests.mount.calls import NOBODY, in_child

pytestmark = pytest.mark.usefixtures("own_processes")


@pytest.fixture
def store(cowfs: Cowfs, project: Path, needs_fuse: None) -> Path:
    """Of a workspace that was mounted from surroundings of every kind."""
    kept, leaked = os.pipe()
    os.set_inheritable(leaked, True)
    cowfs.env |= {"AWS_SECRET_ACCESS_KEY": "secret", "SSH_AUTH_SOCK": "/agent", "LC_TIME": "C"}

    def careless() -> None:
        os.umask(0)
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    with cowfs.start(
        "mount",
        "--store",
        cowfs.top / "store",
        project,
        cwd=project,
        preexec_fn=careless,
        pass_fds=(leaked,),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out
    os.close(leaked)
    assert os.read(kept, 1) == b""  # nobody has its other end any more
    os.close(kept)
    return cowfs.top / "store"


def processes(cowfs: Cowfs, store: Path) -> list[int]:
    """The daemon and the process that stands by it."""
    pid = cowfs.pid(store)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(children) == 1
    return [pid, int(children[0])]


def test_what_a_daemon_takes_over(cowfs: Cowfs, store: Path) -> None:
    for pid in processes(cowfs, store):
        proc = Path(f"/proc/{pid}")
        assert os.readlink(proc / "cwd") == "/"
        assert "Umask:\t0077\n" in (proc / "status").read_text()
        assert "Max core file size        0 " in (proc / "limits").read_text()
        assert os.readlink(proc / "fd/0") == "/dev/null"
        assert os.getsid(pid) == cowfs.pid(store)
        environment = (proc / "environ").read_bytes()
        assert b"secret" not in environment
        assert b"SSH_AUTH_SOCK" not in environment
        assert b"LC_TIME=C" in environment


def test_no_descriptor_is_passed_on(cowfs: Cowfs, store: Path) -> None:
    """close-on-exec (fdinfo of proc(5): flags in octal, O_CLOEXEC)."""
    for pid in processes(cowfs, store):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            text = Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
            flags = int(text.split("flags:")[1].split()[0], 8)
            assert flags & os.O_CLOEXEC or int(fd) < 3, os.readlink(f"/proc/{pid}/fd/{fd}")


def test_the_store_is_for_its_user_alone(cowfs: Cowfs, store: Path) -> None:
    assert stat.S_IMODE(store.stat().st_mode) == 0o700
    for path in store.iterdir():
        assert path.lstat().st_mode & 0o077 == 0, path.name
        assert path.lstat().st_uid == os.geteuid()
    socket = store / "control.sock"
    assert stat.S_ISSOCK(socket.lstat().st_mode)
    assert stat.S_IMODE(socket.lstat().st_mode) == 0o600


def test_no_socket_without_a_file(cowfs: Cowfs, store: Path) -> None:
    """Sockets of the abstract name space have no permissions (unix(7))."""
    sockets = {
        os.readlink(f"/proc/{pid}/fd/{fd}")[len("socket:[") : -1]
        for pid in processes(cowfs, store)
        for fd in os.listdir(f"/proc/{pid}/fd")
        if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
    }
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    names = [row[7] for row in rows if row[6] in sockets and len(row) > 7]
    assert len(names) == 1
    assert names[0].endswith("/control.sock")
    tables = ("tcp", "tcp6", "udp", "udp6")
    assert not any(
        line.split()[9] in sockets
        for table in tables
        if os.path.exists(f"/proc/net/{table}")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    )


def test_other_users_are_not_answered(cowfs: Cowfs, store: Path) -> None:
    """Neither by the file's permissions nor, where those were opened, by the daemon."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")

    def ask() -> None:
        with Client(str(store), timeout=30) as client:
            client.call("status")

    def closed() -> None:
        with pytest.raises(ConnectionFailedError, match="Permission"):
            ask()

    def refused() -> None:
        for method in ("status", "checkpoint", "flush", "unmount", "nothing"):
            with Client(str(store), timeout=30) as client, pytest.raises(RpcError) as caught:
                client.call(method)
            assert caught.value.error["code"] == "COWFS_PERMISSION"
            assert client.take_fd() is None

    above = [store, *store.parents]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in above}
    in_child(closed, uid=NOBODY)
    (store / "control.sock").chmod(0o666)
    try:
        for path in above:
            path.chmod(modes[path] | 0o055)
        in_child(refused, uid=NOBODY)
        ask()  # root
    finally:
        for path in above:
            path.chmod(modes[path])
