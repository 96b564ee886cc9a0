"""`cowfs resume`: after a kill, with nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.agent import Agent, ended_pid, path_with, pretend, texts
from tests.cli.command import Cowfs
from tests.cli.terminal import terminal


class Broken:
    """An agent that was killed in the middle of its second prompt, and the daemon with it."""

    def __init__(self, cowfs: Cowfs, project: Path) -> None:
        self.agent = Agent(cowfs, project, pid=ended_pid())
        self.agent.prompt("make the cart")
        (project / "cart").write_text("two\n")
        self.agent.answer("it is made")
        self.point = self.agent.prompt("add tax")
        (project / "cart").write_text("three\n")
        self.agent.answer("I begin")
        self.project = project
        self.cowfs = cowfs

    def kill_daemon(self) -> None:
        status = self.cowfs.ok("status")
        os.kill(status["pid"], signal.SIGKILL)


@pytest.fixture
def alone(cowfs: Cowfs, mounted: Path) -> Broken:
    """The only session of a workspace. Commands have no process of their own, which is quicker."""
    cowfs.in_process = True
    return Broken(cowfs, mounted)


@pytest.fixture
def work(shared_cowfs: Cowfs, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One mount for several tests, in which each names its session."""
    monkeypatch.setattr(shared_cowfs, "env", dict(shared_cowfs.env))
    shared_cowfs.in_process = True
    (workspace / "cart").write_text("one\n")
    (workspace / "src").mkdir(exist_ok=True)
    (workspace / "src" / "main.c").write_text("int main;\n")
    return workspace


@pytest.fixture
def broken(shared_cowfs: Cowfs, work: Path) -> Broken:
    return Broken(shared_cowfs, work)


def test_after_a_crash(cowfs: Cowfs, alone: Broken) -> None:
    """The workspace is mounted again, the files and the conversation go on where they were."""
    agent, project = alone.agent, alone.project
    with (project / "cart").open() as file:
        os.fsync(file.fileno())
    alone.kill_daemon()
    cowfs.cwd = cowfs.top
    said = cowfs.says("-C", project, "resume")
    assert (project / "cart").read_text() == "three\n"
    assert f"    cd {project} && claude --resume {agent.session}\n" in said + "\n"
    assert "whole: the agent goes on with it" in said
    assert f"1 modified since {alone.point[:8]}" in said
    assert "add tax" in said
    assert agent.copies() == []
    told = cowfs.run("-C", project, "resume", "--json").document
    assert told["command"] == ["claude", "--resume", agent.session]
    assert told["cwd"] == str(project)
    assert (told["copied"], told["code"]) == (False, False)
    assert told["checkpoint"] == alone.point


def test_it_is_mounted_if_it_is_not(cowfs: Cowfs, alone: Broken) -> None:
    cowfs.cwd = cowfs.top
    cowfs.ok("unmount", alone.project)
    plan = cowfs.run("-C", alone.project, "resume", "--dry-run", "--json").document
    assert (plan["dry_run"], plan["mounted"]) == (True, False)
    assert cowfs.mounts() == []
    told = cowfs.run("-C", alone.project, "resume", "--json").document
    assert told["mounted"] is True
    assert [at for at, _ in cowfs.mounts()] == [alone.project]


def test_back_to_the_last_checkpoint(shared_cowfs: Cowfs, broken: Broken) -> None:
    """The conversation goes back with the files: what was said since is not in the copy."""
    agent = broken.agent
    said = shared_cowfs.says("resume", broken.agent.session, "--code")
    assert (broken.project / "cart").read_text() == "two\n"
    [copy] = agent.copies()
    assert texts(copy) == ["make the cart", "it is made"]
    assert f"claude --resume {copy.stem}" in said
    assert "the prompt was\n    add tax" in said
    shared_cowfs.ok("undo")
    assert (broken.project / "cart").read_text() == "three\n"


def test_only_the_files_go_back_when_nothing_was_said_since(
    shared_cowfs: Cowfs, broken: Broken
) -> None:
    agent = broken.agent
    (broken.project / "cart").write_text("four\n")
    agent.tell("turn-end", last_answer="I begin")
    (broken.project / "cart").write_text("five\n")
    told = shared_cowfs.ok("resume", broken.agent.session, "--code")
    assert (broken.project / "cart").read_text() == "four\n"
    assert told["command"] == ["claude", "--resume", agent.session]
    assert agent.copies() == []


@pytest.mark.parametrize("damage", ["gone", "cut in a line", "zeros", "shorter", "another"])
def test_a_conversation_that_is_not_whole(shared_cowfs: Cowfs, broken: Broken, damage: str) -> None:
    """What the store has of it goes on, in a copy."""
    agent = broken.agent
    agent.tell("tool-end", tool="Bash", tool_id="t1")
    whole = agent.transcript.read_bytes()
    lines = whole.splitlines(keepends=True)
    left = {
        "cut in a line": whole + lines[-1][:40],
        "zeros": whole + bytes(4096),
        "shorter": b"".join(lines[:1]),
        "another": b"".join([lines[1], *lines[1:]]),
    }
    if damage == "gone":
        agent.transcript.unlink()
    else:
        agent.transcript.write_bytes(left[damage])
    before = agent.transcript.read_bytes() if damage != "gone" else b""
    plan = shared_cowfs.ok("resume", agent.session, "--dry-run")
    assert plan["copied"] is True
    assert plan["conversation"] is None
    assert agent.copies() == []
    told = shared_cowfs.ok("resume", agent.session)
    [copy] = agent.copies()
    assert told["command"] == ["claude", "--resume", copy.stem]
    assert texts(copy) == ["make the cart", "it is made", "add tax", "I begin"]
    assert (broken.project / "cart").read_text() == "three\n"
    if damage != "gone":
        assert agent.transcript.read_bytes() == before


def test_the_agent_is_run(shared_cowfs: Cowfs, work: Path) -> None:
    """In its directory, with the environment of then; secrets are those of now, or are named."""
    below = work / "src"
    environment = {
        "PATH": os.environ["PATH"],
        "PROJECT_MODE": "then",
        "TERM": "of-then",
        "MY_TOKEN": "a secret of then",
        "OTHER_TOKEN": "another",
        "CLAUDE_CODE_SESSION_ID": "somebody else",
    }
    agent = Agent(shared_cowfs, work, pid=ended_pid())
    agent.project = below
    agent.prompt("go", environment=environment)
    agent.answer("gone")
    told = pretend(shared_cowfs.top / "bin", "claude")
    environment["PATH"] = path_with(shared_cowfs.top / "bin")
    agent.prompt("again", environment=environment)
    shared_cowfs.env |= {"MY_TOKEN": "a secret of now", "TERM": "of-now", "PROJECT_MODE": "now"}
    shared_cowfs.env.pop("OTHER_TOKEN", None)
    shared_cowfs.in_process = False
    result = shared_cowfs.run("resume", agent.session, "--exec")
    assert result.code == 5
    assert result.out == "the agent runs\n"
    assert f"session {agent.session} of Claude Code" in result.err
    words, cwd, found = json.loads(told.read_text())
    assert words == ["--resume", agent.session]
    assert cwd == str(below)
    assert found["PWD"] == str(below)
    assert found["PROJECT_MODE"] == "then"
    assert found["TERM"] == "of-now"
    assert found["MY_TOKEN"] == "a secret of now"
    assert "OTHER_TOKEN" not in found
    assert "CLAUDE_CODE_SESSION_ID" not in found
    told_json = shared_cowfs.ok("resume", agent.session, "--dry-run")
    assert told_json["not_set"] == ["OTHER_TOKEN"]
    assert told_json["environment"]["PROJECT_MODE"] == "then"


def test_the_agent_has_the_signals_of_any_program(shared_cowfs: Cowfs, broken: Broken) -> None:
    """Python ignores SIGPIPE, which a program that it becomes would do, too."""
    program = shared_cowfs.top / "plain" / "claude"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ngrep SigIgn /proc/$$/status\n")
    program.chmod(0o755)
    shared_cowfs.env["PATH"] = path_with(program.parent)
    shared_cowfs.in_process = False
    result = shared_cowfs.run("resume", broken.agent.session, "--exec", "--json")
    document, line = result.out.splitlines()
    assert json.loads(document)["command"][0] == "claude"
    assert line.split() == ["SigIgn:", f"{0:016x}"]


def test_an_agent_that_is_not_installed(shared_cowfs: Cowfs, broken: Broken) -> None:
    shared_cowfs.env["PATH"] = "/nowhere"
    shared_cowfs.in_process = False
    error = shared_cowfs.fails("resume", broken.agent.session, "--exec")
    assert error["code"] == "COWFS_AGENT_MISSING"
    assert error["details"]["program"] == "claude"


def test_what_ran_then(shared_cowfs: Cowfs, work: Path) -> None:
    """A server of the agent's that is not there any more, and one that is."""
    serve = (
        "import socket, sys\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "print(s.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", serve], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=work
    )
    with process:
        assert process.stdout
        port = int(process.stdout.readline())
        agent = Agent(shared_cowfs, work, pid=process.pid)
        agent.prompt("go")
        process.kill()
    told = shared_cowfs.ok("resume", agent.session)
    assert {row["port"] for row in told["ports"]} == {port}
    assert process.pid in {row["pid"] for row in told["processes"]}
    said = shared_cowfs.says("resume", agent.session)
    assert f"127.0.0.1 port {port}" in said
    assert "ran then, and not now" in said


def test_sub_agents(shared_cowfs: Cowfs, broken: Broken) -> None:
    broken.agent.tell("subagent-start", subagent="helper-1", subagent_kind="reviewer")
    said = shared_cowfs.says("resume", broken.agent.session)
    assert "helper-1  reviewer  interrupted" in said
    [row] = shared_cowfs.ok("resume", broken.agent.session)["session"]["subagents"]
    assert (row["kind"], row["state"]) == ("reviewer", "interrupted")


def test_which_session(cowfs: Cowfs, alone: Broken) -> None:
    other = Agent(cowfs, alone.project, pid=ended_pid())
    other.prompt("something else")
    error = cowfs.fails("resume")
    assert error["code"] == "COWFS_AMBIGUOUS_SESSION"
    assert {alone.agent.session, other.session} == set(error["details"]["matches"].split(", "))
    assert cowfs.ok("resume", other.session[:8])["session"]["id"] == other.session
    with terminal(cowfs, "resume", "--no-code") as (term, process):
        term.read_until(b"(0: none) [0]: ")
        term.type(b"2\n")
        assert f"claude --resume {alone.agent.session}" in term.rest()
        assert process.wait(30) == 0


def test_the_offer_to_restore(shared_cowfs: Cowfs, broken: Broken) -> None:
    for answer, content in ((b"n\n", "three\n"), (b"y\n", "two\n")):
        with terminal(shared_cowfs, "resume", broken.agent.session) as (term, process):
            term.read_until(b"[y/N]: ")
            term.type(answer)
            term.rest()
            assert process.wait(30) == 0
        assert (broken.project / "cart").read_text() == content


def test_somebody_works_while_it_is_asked(shared_cowfs: Cowfs, broken: Broken) -> None:
    with terminal(shared_cowfs, "resume", broken.agent.session) as (term, process):
        term.read_until(b"[y/N]: ")
        (broken.project / "late").write_text("not to be lost")
        term.type(b"y\n")
        text = term.rest()
        assert process.wait(30) == 9
    assert "late" in text
    assert (broken.project / "cart").read_text() == "three\n"
    assert broken.agent.copies() == []


def test_what_cannot_be_resumed(cowfs: Cowfs, mounted: Path) -> None:
    assert cowfs.fails("resume")["code"] == "COWFS_NOTHING_INTERRUPTED"
    assert cowfs.fails("resume", "nope")["code"] == "COWFS_UNKNOWN_SESSION"
    running = Agent(cowfs, mounted, pid=os.getpid())
    running.prompt("go")
    error = cowfs.fails("resume", running.session)
    assert error["code"] == "COWFS_SESSION_RUNNING"
    assert error["details"]["pid"] == os.getpid()
    running.tell("session-end", reason="exit")
    assert cowfs.ok("resume", running.session)["command"] == ["claude", "--resume", running.session]


def test_a_directory_that_is_gone(shared_cowfs: Cowfs, work: Path) -> None:
    below = work / "src"
    agent = Agent(shared_cowfs, work, pid=ended_pid())
    agent.project = below
    agent.prompt("go")
    agent.answer("gone")
    (below / "main.c").unlink()
    below.rmdir()
    error = shared_cowfs.run("resume", agent.session, "--json")
    assert error.code == 76
    assert error.document["error"]["code"] == "COWFS_SESSION_PLACE"
    assert error.document["error"]["details"]["path"] == str(below)
    shared_cowfs.ok("resume", agent.session, "--code")
    assert (below / "main.c").exists()


def test_an_agent_that_nobody_knows(shared_cowfs: Cowfs, work: Path) -> None:
    log = shared_cowfs.top / "bot.log"
    log.write_text("hello\n")
    start = shared_cowfs.ok(
        "session", "start", "--agent", "mybot", "--transcript", log, "--pid", str(ended_pid())
    )
    told = shared_cowfs.ok("resume", start["session"])
    assert told["command"] == []
    assert str(log) in told["notes"][0]
    shared_cowfs.in_process = False
    assert shared_cowfs.fails("resume", start["session"], "--exec")["code"] == "COWFS_AGENT_MISSING"


def test_a_copy_that_somebody_went_on_with_is_offered_instead(cowfs: Cowfs, alone: Broken) -> None:
    told = cowfs.ok("resume", "--code")
    name = told["conversation"]["session"]
    assert cowfs.ok("sessions")["interrupted"] == [alone.agent.session]
    copy = Agent.__new__(Agent)
    copy.cowfs, copy.project, copy.pid = cowfs, alone.project, ended_pid()
    copy.session, copy.transcript = name, Path(told["conversation"]["files"][0])
    copy.tell("session-start", source="resume")
    listed = cowfs.ok("sessions")
    assert listed["interrupted"] == [name]
    [row] = [row for row in listed["sessions"] if row["id"] == name]
    assert row["origin"] == alone.agent.session
