"""Which process a pid means, when it may be another one by now."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import dataclass, field

import pytest

from cowfs.format.audit import UNKNOWN, ProcessRecord
from cowfs.volume import audit, audit_processes
from cowfs.volume.audit_processes import Processes, Seen, look_at, parse_stat
from tests.audit.acting import Actor, processes, sleeper
from tests.support.volumes import Rig


@dataclass
class Machine:
    """Stands in for /proc. Of each pid: name, parent, start, command line, process, user."""

    seen: dict[int, Seen] = field(default_factory=dict)
    commands: dict[int, bytes] = field(default_factory=dict)
    looks: int = 0

    def run(self, pid: int, name: str, parent: int = 1, start: int = 100, line: str = "") -> None:
        self.seen[pid] = Seen(name.encode(), parent, start)
        self.commands[pid] = (line or name).replace(" ", "\0").encode() + b"\0"

    def look_at(self, pid: int) -> Seen | None:
        self.looks += 1
        return self.seen.get(pid)

    def end(self, pid: int) -> None:
        del self.seen[pid]
        self.commands[pid] = b""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(audit_processes, "look_at", found.look_at)
    monkeypatch.setattr(audit_processes, "command_of", lambda pid: found.commands.get(pid, b""))
    monkeypatch.setattr(audit_processes, "group_and_user", lambda pid: (pid, 0))
    return found


@pytest.fixture
def known(volume: Rig) -> Processes:
    return volume.volume.audit.processes


def record(known: Processes, number: int) -> ProcessRecord:
    return known._by_number[number].record


def test_a_name_with_parentheses() -> None:
    """proc_pid_stat(5): programs choose their names."""
    line = b"42 (a) b (c) S 7 " + b" ".join(b"%d" % n for n in range(5, 52))
    assert parse_stat(line) == Seen(b"a) b (c", 7, 22)
    assert parse_stat(b"") is None


def test_oneself() -> None:
    seen = look_at(os.getpid())
    assert seen is not None
    assert seen.parent == os.getppid()
    assert look_at((1 << 22) + 1) is None  # PID_MAX_LIMIT of proc(5)


def test_it_is_looked_at_once_in_a_group(machine: Machine, known: Processes) -> None:
    machine.run(50, "vi")
    numbers = {known.number(50) for _ in range(100)}
    assert (len(numbers), machine.looks) == (1, 1)
    known.next_round(set)
    assert known.number(50) in numbers
    assert machine.looks == 2


def test_a_pid_that_is_used_again(machine: Machine, known: Processes) -> None:
    machine.run(50, "vi", start=100)
    one = known.number(50)
    known.next_round(set)
    machine.run(50, "cc", start=200)
    two = known.number(50)
    assert one != two
    assert (record(known, one).name, record(known, two).name) == ("vi", "cc")


def test_another_program_in_a_process(machine: Machine, known: Processes) -> None:
    """What it did as the one before stays that one's."""
    machine.run(50, "bash", start=100, line="bash script")
    one = known.number(50)
    known.next_round(set)
    machine.run(50, "vi", start=100, line="vi notes")
    two = known.number(50)
    assert (record(known, one).command, record(known, two).command) == (
        b"bash\0script\0",
        b"vi\0notes\0",
    )


def test_a_fork_that_becomes_a_program(machine: Machine, known: Processes) -> None:
    """`sort a > b`: the shell's child opens b, and then it is sort."""
    machine.run(40, "bash", line="bash script")
    machine.run(50, "bash", parent=40, line="bash script")
    one = known.number(50)
    assert record(known, one).name == "bash"
    machine.run(50, "sort", parent=40, line="sort a")
    assert known.number(50) == one
    assert record(known, one).command == b"sort\0a\0"
    assert record(known, record(known, one).parent).name == "bash"


def test_a_fork_that_is_about_to_end(machine: Machine, known: Processes) -> None:
    """Its memory is gone already (exit_mm), and with it its command line."""
    machine.run(40, "bash")
    machine.run(50, "bash", parent=40)
    one = known.number(50)
    machine.run(50, "sort", parent=40)
    machine.commands[50] = b""
    known.refresh(one)
    assert record(known, one).command == b"sort\0"


def test_a_fork_that_stays_one_is_not_looked_at_for_ever(
    machine: Machine, known: Processes
) -> None:
    machine.run(40, "bash")
    machine.run(50, "bash", parent=40)
    for _ in range(1000):
        known.number(50)
    assert machine.looks < 20


def test_a_fork_that_writes_much_is_looked_at_seldom(volume: Rig, machine: Machine) -> None:
    """The kernel writes its pages back one by one, and /proc is slow."""
    machine.run(40, "fio")
    machine.run(50, "fio", parent=40)
    actor = Actor(volume, 50)
    actor.create(b"data")
    actor.open(b"data")
    for number in range(1000):
        actor.write(b"data", b"page", number)
    assert machine.looks < 40


def test_groups_in_quick_succession_are_one_round(
    volume: Rig, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who calls fsync after each write closes a group each time."""
    monkeypatch.setattr(audit, "_LOOK_NS", 1 << 60)
    machine.run(40, "db")
    machine.run(50, "db", parent=40)
    actor = Actor(volume, 50)
    actor.create(b"data")
    actor.open(b"data")
    volume.volume.sync()
    before = machine.looks
    for number in range(100):
        actor.write(b"data", b"page", number)
        actor.create(b"journal%d" % number)
        volume.volume.sync()
    assert machine.looks - before < 20


def test_one_that_ended_is_remembered(machine: Machine, known: Processes) -> None:
    machine.run(50, "vi")
    one = known.number(50)
    machine.end(50)
    known.next_round(set)
    assert known.number(50) == one
    assert known.number(51) == UNKNOWN


def test_the_chain_ends_below_the_first_process(machine: Machine, known: Processes) -> None:
    machine.run(1, "init", parent=0)
    machine.run(30, "sshd", parent=1)
    machine.run(40, "bash", parent=30)
    machine.run(50, "vi", parent=40)
    chain, number = [], known.number(50)
    while number:
        chain.append(record(known, number).name)
        number = record(known, number).parent
    assert chain == ["vi", "bash", "sshd"]
    assert known.number(0) == known.number(-1) == UNKNOWN


def test_a_chain_that_leads_in_a_circle(machine: Machine, known: Processes) -> None:
    """Pids are used again while we look."""
    machine.run(40, "a", parent=50)
    machine.run(50, "b", parent=40)
    assert known.number(40) > UNKNOWN


def test_only_so_many_are_kept(
    machine: Machine, known: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_processes, "_MOST", 50)
    machine.run(40, "make")
    for pid in range(1000, 2000):
        machine.run(pid, "cc", parent=40)
        known.number(pid)
        known.next_round(set)
    assert len(known._by_pid) <= 100
    assert 40 in known._by_pid


def test_one_that_has_a_file_open_is_kept(
    volume: Rig, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have ended long ago when the kernel writes; the store must know it then."""
    monkeypatch.setattr(audit_processes, "_MOST", 5)
    volume.create(b"f")
    machine.run(40, "vi")
    writer = Actor(volume, 40)
    writer.open(b"f")
    for pid in range(1000, 1100):
        machine.run(pid, "cc")
        Actor(volume, pid).create(b"%d" % pid)
        volume.volume.quiesce()
    writer.write(b"f", b"late")
    volume.volume.sync()
    assert "vi" in {row.name for row in processes(volume).values()}


@pytest.mark.parametrize("ended", [40, 50])
def test_the_one_that_ended_has_closed_its_file(volume: Rig, machine: Machine, ended: int) -> None:
    """Whoever opened it last."""
    volume.create(b"f")
    volume.volume.sync()
    for pid, name in ((40, "older"), (50, "newer")):
        machine.run(pid, name)
        Actor(volume, pid).open(b"f")
    machine.end(ended)
    actor = Actor(volume, 90 - ended)
    actor.close(b"f")
    actor.write(b"f", b"1")
    volume.volume.sync()
    assert [row.pid for row in processes(volume).values()] == [90 - ended]
    actor.close(b"f")
    assert actor.audit._openers == {}


def test_threads_are_their_process(volume: Rig) -> None:
    found = []

    def work() -> None:
        found.append(volume.volume.audit.processes.number(threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [volume.volume.audit.processes.number(os.getpid())]


def test_the_store_has_who_did_it_and_those_above(volume: Rig) -> None:
    with sleeper() as pid:
        Actor(volume, pid).create(b"f")
        volume.volume.sync()
        found = {row.pid: row for row in processes(volume).values()}
    row = found[pid]
    assert (row.name, row.command, row.uid) == ("sleep", b"sleep\x0060\0", os.geteuid())
    assert processes(volume)[row.parent].pid == os.getpid()
    ticks = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(os.getpid())], capture_output=True, check=False
    )
    if ticks.returncode == 0:
        assert row.started >= processes(volume)[row.parent].started > 0


def test_one_that_only_opened_a_file_is_not_stored(volume: Rig) -> None:
    volume.create(b"f")
    Actor(volume).open(b"f")
    volume.volume.sync()
    assert processes(volume) == {}
