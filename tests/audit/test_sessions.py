"""Which session and which call of a tool a process belongs to."""

from __future__ import annotations

import os

import pytest

from cowfs.format.audit import ProcessRecord
from cowfs.service.audit.log import Process
from cowfs.service.audit.stories import name_of
from cowfs.volume.audit_processes import Processes, look_at
from cowfs.volume.audit_sessions import Call
from tests.audit.acting import Actor, processes, sleeper, sleeper_with, stored
from tests.audit.test_processes import Machine, known, machine, record
from tests.support.volumes import Rig

__all__ = ["known", "machine"]

AGENT = (40, 100)
SESSION = "5f0c12ab-0000-4000-8000-000000000001"
OTHER = "6f0c12ab-0000-4000-8000-000000000002"


@pytest.fixture
def agent(machine: Machine, known: Processes) -> Processes:
    """A session's process 40, which was started by a shell."""
    machine.run(30, "zsh", start=50)
    machine.run(40, "claude", parent=30, start=100)
    known.follow({AGENT: SESSION}, {})
    return known


def belongs(known: Processes, pid: int) -> tuple[str, str, bool]:
    found = record(known, known.number(pid))
    return found.session, found.tool, found.outside


def call(name: str, command: str, since: int = 200, session: str = SESSION) -> Call:
    return Call(name, session, command, since)


def test_without_sessions_nobody_is_outside(machine: Machine, known: Processes) -> None:
    machine.run(50, "vi")
    assert belongs(known, 50) == ("", "", False)


def test_the_process_of_a_session_and_its_descendants(machine: Machine, agent: Processes) -> None:
    machine.run(50, "bash", parent=40)
    machine.run(51, "make", parent=50)
    machine.run(52, "cc", parent=51)
    assert [belongs(agent, pid) for pid in (40, 50, 52)] == [(SESSION, "", False)] * 3


def test_everybody_else_is_outside(machine: Machine, agent: Processes) -> None:
    machine.run(60, "vi", parent=30)
    assert belongs(agent, 60) == ("", "", True)
    assert belongs(agent, 30) == ("", "", True)


def test_the_pid_of_a_session_that_is_used_again(machine: Machine, agent: Processes) -> None:
    machine.run(40, "vi", start=900)
    assert belongs(agent, 40) == ("", "", False)  # and so that session is no more


def test_a_session_whose_process_is_gone(machine: Machine, agent: Processes) -> None:
    machine.end(40)
    machine.run(60, "vi", parent=30)
    assert belongs(agent, 60) == ("", "", False)


def test_what_is_met_before_and_after_it_begins(machine: Machine, known: Processes) -> None:
    machine.run(30, "zsh")
    machine.run(60, "vi", parent=30)
    before = known.number(60)
    machine.run(40, "claude", parent=30)
    known.follow({AGENT: SESSION}, {})
    during = known.number(60)
    known.follow({}, {})
    after = known.number(60)
    assert len({before, during, after}) == 3
    assert [record(known, n).outside for n in (before, during, after)] == [False, True, False]


def test_calls_do_not_make_processes_others(machine: Machine, agent: Processes) -> None:
    machine.run(60, "vi", parent=30)
    one = agent.number(60)
    agent.follow({AGENT: SESSION}, {SESSION: [call("t1", "make")]})
    assert agent.number(60) == one


# -- calls of tools -------------------------------------------------------------------------


def test_the_only_call_that_is_under_way(machine: Machine, agent: Processes) -> None:
    agent.follow({AGENT: SESSION}, {SESSION: [call("t1", "make all")]})
    machine.run(50, "bash", parent=40, start=210, line="bash -c whatever")
    machine.run(51, "make", parent=50, start=211)
    assert belongs(agent, 51) == (SESSION, "t1", False)
    agent.follow({AGENT: SESSION}, {})
    machine.run(52, "cc", parent=51, start=300)
    assert belongs(agent, 52) == (SESSION, "t1", False)  # it goes on in the background
    assert belongs(agent, 40) == (SESSION, "", False)


def test_a_process_that_was_there_before_the_call(machine: Machine, agent: Processes) -> None:
    """A server of the agent's, say."""
    machine.run(50, "node", parent=40, start=150)
    agent.follow({AGENT: SESSION}, {SESSION: [call("t1", "make")]})
    assert belongs(agent, 50) == (SESSION, "", False)


def test_several_calls_are_told_apart_by_their_commands(machine: Machine, agent: Processes) -> None:
    subagent = f"{SESSION}/a1"
    calls = [call("t1", "rm -rf build"), call("t2", "npm test", session=subagent)]
    agent.follow({AGENT: SESSION}, {SESSION: calls})
    machine.run(50, "bash", parent=40, start=210, line="bash -c eval 'npm test' < /dev/null")
    machine.run(51, "bash", parent=40, start=210, line="bash -c eval 'rm -rf build' < /dev/null")
    machine.run(52, "bash", parent=40, start=210, line="bash -c something")
    machine.run(53, "node", parent=50, start=211, line="node jest")
    assert belongs(agent, 50) == belongs(agent, 53) == (subagent, "t2", False)
    assert belongs(agent, 51) == (SESSION, "t1", False)
    assert belongs(agent, 52) == (SESSION, "", False)


def test_commands_that_are_quoted_once_more(machine: Machine, agent: Processes) -> None:
    one, two = "echo 'a b' > f", "echo 'a b' > f; make"
    agent.follow({AGENT: SESSION}, {SESSION: [call("t1", one), call("t2", two)]})
    quoted = one.replace("'", "'\"'\"'")
    machine.run(50, "bash", parent=40, start=210, line=f"bash -c eval '{quoted}'")
    machine.run(51, "bash", parent=40, start=210, line=f"bash -c eval '{quoted}; make'")
    assert [belongs(agent, pid)[1] for pid in (50, 51)] == ["t1", "t2"]


def test_a_long_command_is_compared_whole(machine: Machine, agent: Processes) -> None:
    """More of it than is stored."""
    setup = "source " + "x" * 1000
    agent.follow({AGENT: SESSION}, {SESSION: [call("t1", "make one"), call("t2", "make two")]})
    machine.run(50, "bash", parent=40, start=210, line=f"bash -c {setup} && eval 'make two'")
    assert belongs(agent, 50) == (SESSION, "t2", False)


def test_what_the_agent_does_itself(machine: Machine, agent: Processes) -> None:
    """An edit, of a sub-agent say: that is a call of its own, also for a process that was met."""
    subagent = f"{SESSION}/a1"
    before = agent.number(40)
    agent.follow({AGENT: SESSION}, {SESSION: [call("e1", "", session=subagent)]})
    during = agent.number(40)
    machine.run(50, "bash", parent=40, start=210)
    child = agent.number(50)
    agent.follow({AGENT: SESSION}, {SESSION: []})
    after = agent.number(40)
    assert [(record(agent, n).session, record(agent, n).tool) for n in (before, during, after)] == [
        (SESSION, ""),
        (subagent, "e1"),
        (SESSION, ""),
    ]
    assert (record(agent, child).session, record(agent, child).tool) == (SESSION, "")


def test_two_edits_at_once_are_of_the_session(machine: Machine, agent: Processes) -> None:
    calls = [call("e1", ""), call("e2", "", session=f"{SESSION}/a1")]
    agent.follow({AGENT: SESSION}, {SESSION: calls})
    assert belongs(agent, 40) == (SESSION, "", False)


def test_an_edit_and_a_command_at_once(machine: Machine, agent: Processes) -> None:
    calls = [call("e1", ""), call("t1", "make")]
    agent.follow({AGENT: SESSION}, {SESSION: calls})
    machine.run(50, "bash", parent=40, start=210)
    assert belongs(agent, 40) == (SESSION, "e1", False)
    assert belongs(agent, 50) == (SESSION, "t1", False)


def test_a_fork_is_looked_at_again_when_it_is_a_program(machine: Machine, agent: Processes) -> None:
    calls = [call("t1", "rm -rf build"), call("t2", "npm test")]
    agent.follow({AGENT: SESSION}, {SESSION: calls})
    assert belongs(agent, 40) == (SESSION, "", False)
    machine.run(50, "claude", parent=40, start=210)
    assert belongs(agent, 50) == (SESSION, "", False)
    machine.run(50, "bash", parent=40, start=210, line="bash -c npm test")
    assert belongs(agent, 50) == (SESSION, "t2", False)


# -- those that have lost their parents -----------------------------------------------------


def test_an_id_that_may_be_anything_is_not_looked_for(known: Processes) -> None:
    with sleeper() as agent, sleeper_with({"SHLVL": "1"}) as pid:
        seen = look_at(agent)
        assert seen is not None
        known.follow({(agent, seen.start): "1"}, {})
        assert belongs(known, pid) == ("", "", True)


def test_the_environment_names_the_session(known: Processes) -> None:
    with sleeper() as agent:
        seen = look_at(agent)
        assert seen is not None
        known.follow({(agent, seen.start): SESSION}, {})
        with sleeper_with({"A": "1", "CLAUDE_CODE_SESSION_ID": SESSION}) as pid:
            assert belongs(known, pid) == (SESSION, "", False)
        with sleeper_with({"A": "1", "CLAUDE_CODE_SESSION_ID": OTHER}) as pid:
            assert belongs(known, pid) == ("", "", True)
        with sleeper_with({"A": SESSION + "x", "B": "x" + SESSION}) as pid:
            assert belongs(known, pid) == ("", "", True)


# -- what is stored, and told ---------------------------------------------------------------


def test_it_is_stored_and_counted(volume: Rig) -> None:
    audit = volume.volume.audit
    with sleeper() as agent, sleeper() as other:
        seen = look_at(agent)
        assert seen is not None
        audit.processes.follow({(agent, seen.start): SESSION}, {})
        Actor(volume, agent).create(b"by-the-agent")
        for name in (b"one", b"two", b"three"):
            Actor(volume, other).create(name)
        assert len(stored(volume)) == 2
        found = {row.pid: row for row in processes(volume).values()}
    assert (found[agent].session, found[agent].outside) == (SESSION, False)
    assert (found[other].session, found[other].outside) == ("", True)
    assert found[os.getpid()].outside
    assert audit.outside == 3


def told(session: str, name: str = "make", parents: tuple[ProcessRecord, ...] = ()) -> Process:
    process = ProcessRecord(7, 0, 0, "ana", name, b"make\0all\0", session=session, tool="t1")
    return Process(5, process, parents)


def test_who_is_meant_by_a_session() -> None:
    top, below = told(SESSION), told(f"{SESSION}/agent-7")
    for who in (SESSION, SESSION[:8], SESSION[:4], "t1"):
        assert top.is_of(who)
        assert below.is_of(who)
    assert not top.is_of(SESSION[:3])
    assert not top.is_of(OTHER)
    assert below.is_of("agent-7")
    assert below.is_of(f"{SESSION}/agent-7")
    assert not top.is_of("agent-7")
    assert not told(f"{SESSION}/agent-8").is_of(f"{SESSION}/agent-7")
    assert not told("").is_of(SESSION)


def test_sentences_name_the_session() -> None:
    assert name_of(told(SESSION)) == "`make all` in session 5f0c12ab"
    assert name_of(told(f"{SESSION}/a1b2c3d4e5f6")) == "`make all` in session 5f0c12ab/a1b2c3d4"
    assert name_of(told("")) == "`make all`"
