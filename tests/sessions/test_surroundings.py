"""Processes, sockets and locks, as /proc has them. On a mount: tests/cli/test_show_session.py."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cowfs.format.sessions import ListeningPort, RunningProcess
from cowfs.service.engine import LocalEngine
from cowfs.service.sessions import surroundings
from cowfs.service.sessions.surroundings import descriptors, locks, look_around, ports, processes
from cowfs.service.sessions.surroundings.descriptors import Place
from cowfs.service.sessions.surroundings.locks import Lock
from cowfs.volume.audit_processes import Seen
from tests.audit.acting import sleeper, sleeper_with
from tests.support.volumes import Rig

_PAIR = (
    "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
)


@contextmanager
def parent_and_child() -> Iterator[tuple[int, int]]:
    """Two processes, the second started by the first."""
    command = [sys.executable, "-c", _PAIR, "--token", "hunter2secret"]
    with subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process.pid, child
        finally:
            os.kill(child, 9)
            process.wait()


# -- processes ------------------------------------------------------------------------------


def test_a_tree() -> None:
    def seen(parent: int) -> Seen:
        return Seen(b"x", parent, 1)

    machine = {1: seen(0), 10: seen(1), 12: seen(10), 11: seen(10), 20: seen(12), 30: seen(1)}
    assert processes.below(machine, 10) == [10, 11, 12, 20]
    assert processes.below(machine, 30) == [30]
    assert processes.below(machine, 99) == []


def test_what_is_told_of_processes(volume: Rig) -> None:
    before = time.time_ns()
    with parent_and_child() as (parent, child):
        around = look_around(LocalEngine(volume.volume), parent, {"A": "1"}, thorough=False)
    one, two = around.processes
    assert (one.pid, one.parent, one.cwd) == (parent, os.getpid(), b"/")
    assert one.command.split(b"\0")[-3:] == [b"--token", b"***", b""]
    assert (two.pid, two.parent) == (child, parent)
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert before - 2 * tick <= one.started <= two.started <= time.time_ns()
    assert around.environment == (("A", "1"),)
    assert around.missing == ()


def test_the_environment_that_it_was_started_with(volume: Rig) -> None:
    """When nobody sends another one."""
    environment = {"PATH": os.environ["PATH"], "MARK": "here", "MARK_TOKEN": "hunter2secret"}
    with sleeper_with(environment) as pid:
        around = look_around(LocalEngine(volume.volume), pid, {})
    assert dict(around.environment) == {"PATH": os.environ["PATH"], "MARK": "here"}
    assert around.hidden == ("MARK_TOKEN",)


def test_one_that_is_gone(volume: Rig) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    around = look_around(LocalEngine(volume.volume), process.pid, {"A": "1"})
    assert around.processes == ()
    assert around.missing == (f"process {process.pid}: it is gone",)


def test_those_that_end_while_they_are_looked_at(
    volume: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is there when the table is read, and gone afterwards."""
    pid = (1 << 22) + 5  # above PID_MAX_LIMIT of proc(5)
    monkeypatch.setattr(processes, "machine", lambda: {pid: Seen(b"gone", 1, 100)})
    around = look_around(LocalEngine(volume.volume), pid, {"A": "1"})
    (found,) = around.processes
    assert (found.pid, found.command, found.cwd) == (pid, b"gone\0", b"")
    assert around.ports == ()


def test_nobody_knows_the_process(volume: Rig) -> None:
    around = look_around(LocalEngine(volume.volume), 0, {"A": "1"})
    assert (around.environment, around.processes, around.missing) == ((("A", "1"),), (), ())


def test_no_more_than_so_many(volume: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "MOST_PROCESSES", 1)
    with parent_and_child() as (parent, _):
        around = look_around(LocalEngine(volume.volume), parent, {"A": "1"}, thorough=False)
    assert [process.pid for process in around.processes] == [parent]
    assert around.missing == ("1 more processes",)


def test_whether_one_still_runs() -> None:
    with sleeper() as pid:
        (found,) = processes.described(processes.machine(), [pid], {})
        assert processes.is_running(found)
        earlier = RunningProcess(pid, 1, found.started - 3_600_000_000_000, b"sleep\0")
        assert not processes.is_running(earlier)
    assert not processes.is_running(found)


def test_variables() -> None:
    raw = b"A=1\0B=a=b\0nothing\0=x\0A=2\0C=\xff\0"
    assert processes.variables(raw) == {"A": "1", "B": "a=b", "C": "\udcff"}


# -- ports ----------------------------------------------------------------------------------


def listening() -> list[ListeningPort]:
    """Those of this process."""
    me = os.getpid()
    found = descriptors.look([me], None, [me], 0, time.monotonic() + 60)
    return ports.listening(found.sockets, 100)


@pytest.mark.parametrize(
    ("protocol", "family", "kind", "address"),
    [
        ("tcp", socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"),
        ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, "::1"),
        ("udp", socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
        ("udp6", socket.AF_INET6, socket.SOCK_DGRAM, "::1"),
    ],
)
def test_a_port(protocol: str, family: int, kind: int, address: str) -> None:
    with socket.socket(family, kind) as server:
        try:
            server.bind((address, 0))
        except OSError as error:
            pytest.skip(f"no {address} here: {error}")
        if kind == socket.SOCK_STREAM:
            server.listen()
        number = server.getsockname()[1]
        expected = ListeningPort(protocol, address, number, os.getpid())
        assert expected in listening()
        assert (protocol, address, number) in ports.now()
    assert expected not in listening()


def test_a_connection_is_no_port() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with socket.create_connection(server.getsockname()) as client:
            accepted, _ = server.accept()
            with accepted:
                numbers = [port.port for port in listening()]
                assert numbers.count(server.getsockname()[1]) == 1
                assert client.getsockname()[1] not in numbers


# -- locks ----------------------------------------------------------------------------------

ROWS = b"""\
1: POSIX  ADVISORY  READ  5433 08:01:7864448 128 128
2: FLOCK  ADVISORY  WRITE 2001 08:01:7864554 0 EOF
2: -> FLOCK  ADVISORY  WRITE 2002 08:01:7864554 0 EOF
3: FLOCK  ADVISORY  WRITE 1568 00:2f:32388 0 EOF
4: POSIX  ADVISORY  WRITE 699 00:16:28457 0 EOF
5: OFDLCK ADVISORY  READ -1 08:01:8713209 128 191
6: ACCESS ADVISORY  WRITE 1 08:01:8713209 0 EOF
7: POSIX  ADVISORY  WRITE 3548 <none>:0 0 0
""".split(b"\n")
"""As in proc_locks(5)."""


def test_locks_of_a_file_system() -> None:
    assert locks.parse(ROWS, "8:1") == [
        Lock("POSIX", "READ", 5433, 7864448, 128, 128),
        Lock("FLOCK", "WRITE", 2001, 7864554, 0, -1),
        Lock("OFDLCK", "READ", -1, 8713209, 128, 191),
    ]
    assert locks.parse(ROWS, "0:47") == [Lock("FLOCK", "WRITE", 1568, 32388, 0, -1)]
    assert locks.parse(ROWS, "0:99") == []


# -- paths ----------------------------------------------------------------------------------


def test_where_processes_see_a_file_system() -> None:
    top = Place(b"/home/ana/shop", b"")
    assert top.inside(b"/home/ana/shop") == b""
    assert top.inside(b"/home/ana/shop/src/a") == b"src/a"
    assert top.inside(b"/home/ana/shopping") is None
    part = Place(b"/mnt", b"src")  # a bind mount
    assert part.inside(b"/mnt/a") == b"src/a"
    assert part.inside(b"/mnt") == b"src"
