"""PostgreSQL on a mount: made, loaded, killed, recovered, restored."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.mounts import shared_mount
from tests.support import mounting
from tests.support.mounting import Mounted
from tests.tools.tool import SECONDS, environment, need, run, started

_USER = "postgres"
_SCALE = 1


def _binaries() -> Path:
    """Where the server's programs are; Debian keeps them off the PATH."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places or not (places[-1] / "pgbench").exists():
        pytest.skip("PostgreSQL is not installed")
    return places[-1]


class Cluster:
    """A database cluster in a directory of its own below the mount, run as an ordinary user."""

    def __init__(self, mounted: Mounted, sockets: Path) -> None:
        self.mounted = mounted
        self.bin = _binaries()
        self.sockets = sockets
        self.data = mounted.mountpoint / "cluster"
        self.env = environment(sockets, PGHOST=sockets, PGDATABASE="postgres", PGUSER=_USER)
        self._become = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--init-groups"]

    def words(self, program: str, *words: str | Path) -> list[str | Path]:
        return [*self._become, self.bin / program, *words]

    def tool(self, program: str, *words: str | Path) -> str:
        return run(self.words(program, *words), self.sockets, self.env)

    def create(self) -> None:
        self.data.mkdir(0o700)
        shutil.chown(self.data, _USER, _USER)
        self.tool("initdb", "--data-checksums", "-A", "trust", "-E", "UTF8", "-D", self.data)
        with open(self.data / "postgresql.conf", "a") as file:
            file.write("listen_addresses = ''\nmax_connections = 20\nshared_buffers = 16MB\n")

    @contextlib.contextmanager
    def server(self) -> Iterator[subprocess.Popen[bytes]]:
        """The server, ready for connections. What is left of it at the end is killed."""
        words = self.words("postgres", "-D", self.data, "-k", self.sockets)
        with started(words, self.sockets, self.env, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            said = b""
            for line in process.stdout:
                said += line
                if b"ready to accept connections" in line:
                    break
            else:
                raise AssertionError(said.decode())
            yield process

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """A clean end, all in the files."""
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9 of the server and of all its processes, which do not write anything any more.

        They have process groups of their own, so their parent is what tells them.
        """
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(process.pid, signal.SIGSTOP)
        for pid in [process.pid, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        # The pipe ends when the last of them is gone.
        assert process.stdout is not None
        process.stdout.read()

    def sql(self, text: str) -> str:
        return self.tool("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text).strip()

    def examine(self) -> int:
        """The books of pgbench balance, every index is sound; the greatest number in `acked`."""
        sums = self.sql(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts),"
            " (SELECT sum(tbalance) FROM pgbench_tellers),"
            " (SELECT sum(bbalance) FROM pgbench_branches),"
            " (SELECT coalesce(sum(delta), 0) FROM pgbench_history)"
        ).split("|")
        assert len(set(sums)) == 1, sums
        assert self.sql("SELECT count(*) FROM pgbench_accounts") == str(_SCALE * 100_000)
        if self.sql("SELECT 1 FROM pg_extension WHERE extname = 'amcheck'"):
            assert self.tool("pg_amcheck", "--heapallindexed") == ""
        count, greatest = self.sql("SELECT count(*), max(number) FROM acked").split("|")
        assert count == greatest
        return int(count)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster on a mount that its user may use."""
    if reason := mounting.fuse_missing():
        pytest.skip(reason)
    if os.geteuid() != 0:
        pytest.skip("PostgreSQL must run as a user of its own: that needs root")
    _binaries()
    need("setpriv")
    try:
        pwd.getpwnam(_USER)
    except KeyError:
        pytest.skip(f"there is no user {_USER}")
    with tempfile.TemporaryDirectory(prefix="cowfs-test-") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "base").mkdir()
        (place / "sockets").mkdir()
        shutil.chown(place / "sockets", _USER)
        with shared_mount(place / "base", allow_other=True) as mounted:
            yield Cluster(mounted, place / "sockets")


@contextlib.contextmanager
def _load(cluster: Cluster) -> Iterator[None]:
    """pgbench on four connections while the block runs, from when its first second is over."""
    words = cluster.words("pgbench", "-n", "-c", "4", "-T", "1000", "-P", "1")
    with started(words, cluster.sockets, cluster.env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"progress: "):
                break
        yield


def _insert(process: subprocess.Popen[bytes], numbers: range) -> None:
    """Commit rows one after the other; returns when the server has confirmed all."""
    assert process.stdin is not None
    assert process.stdout is not None
    for number in numbers:
        process.stdin.write(b"INSERT INTO acked VALUES (%d) RETURNING number;\n" % number)
        process.stdin.flush()
        assert process.stdout.readline() == b"%d\n" % number


def test_a_killed_server_recovers(cluster: Cluster) -> None:
    cluster.create()
    client = cluster.words("psql", "-XAtq")
    with cluster.server() as server:
        cluster.tool("pgbench", "-i", "-q", "-s", str(_SCALE))
        cluster.sql("CREATE TABLE acked (number int PRIMARY KEY)")
        if cluster.sql("SELECT 1 FROM pg_available_extensions WHERE name = 'amcheck'"):
            cluster.sql("CREATE EXTENSION amcheck")
        with (
            _load(cluster),
            started(client, cluster.sockets, cluster.env, stdin=subprocess.PIPE) as psql,
        ):
            _insert(psql, range(1, 21))
            checkpoint = cluster.mounted.checkpoint("under load")
            _insert(psql, range(21, 41))
            cluster.kill(server)
    with cluster.server() as server:
        assert cluster.examine() == 40
        cluster.stop(server)
    cluster.tool("pg_checksums", "--check", "-D", cluster.data)

    cluster.mounted.restore(checkpoint)
    with cluster.server() as server:
        assert cluster.examine() == 20
        cluster.tool("pgbench", "-n", "-c", "2", "-t", "20")
        assert cluster.examine() == 20
        cluster.stop(server)
    cluster.tool("pg_checksums", "--check", "-D", cluster.data)

    cluster.mounted.call("undo")
    with cluster.server() as server:
        assert cluster.examine() == 40
        cluster.stop(server)
