"""`cowfs sessions`, `cowfs session`, and restores that take the conversation along."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.agent import Agent, ended_pid, texts
from tests.cli.command import Cowfs
from tests.cli.terminal import terminal
from tests.cli.test_help import completed


@pytest.fixture
def work(shared_cowfs: Cowfs, workspace: Path) -> Path:
    """One mount for all tests, each with the same file to begin with."""
    for path in workspace.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (workspace / "cart").write_text("one\n")
    shared_cowfs.in_process = True
    return workspace


@pytest.fixture
def agent(shared_cowfs: Cowfs, work: Path) -> Agent:
    """One that was asked twice, and changed a file each time."""
    agent = Agent(shared_cowfs, work)
    agent.first = agent.prompt("make the cart")
    (work / "cart").write_text("two\n")
    agent.answer("it is made")
    agent.second = agent.prompt("add tax\nto the cart")
    (work / "cart").write_text("three\n")
    (work / "tax").write_text("new\n")
    agent.answer("tax is added")
    return agent


# -- what there is --------------------------------------------------------------------------


def test_start_show_and_end(shared_cowfs: Cowfs, work: Path) -> None:
    log = work.parent / "mybot.log"
    log.write_text("hello\n")
    words = ("session", "start", "--agent", "mybot", "--transcript", str(log), "--title", "a job")
    name = shared_cowfs.says(*words).strip()
    [row] = [r for r in shared_cowfs.ok("sessions")["sessions"] if r["id"] == name]
    assert (row["agent"], row["state"], row["title"]) == ("mybot", "active", "a job")
    assert row["cwd"] == str(work)
    assert row["transcript"] == str(log)
    assert row["checkpoints"] == 0
    (work / "cart").write_text("changed")
    shared_cowfs.env["COWFS_SESSION"] = name
    try:
        ended = shared_cowfs.ok("session", "end", "--reason", "done")
    finally:
        del shared_cowfs.env["COWFS_SESSION"]
    assert ended["session"] == name
    shown = shared_cowfs.ok("session", "show", name[:12])
    assert shown["session"]["state"] == "ended"
    assert shown["session"]["reason"] == "done"
    assert [point["id"] for point in shown["checkpoints"]] == [ended["checkpoint"]["id"]]
    said = shared_cowfs.says("session", "show", name)
    assert f"session {name}\n" in said
    assert "ended (done)" in said
    assert ended["checkpoint"]["id"][:8] in said


def test_an_id_in_the_name_of_the_transcript(shared_cowfs: Cowfs, work: Path) -> None:
    """So the agent's own command for going on finds it."""
    name = "0f0e0d0c-0b0a-0908-0706-050403020100"
    log = work.parent / f"rollout-2026-{name}.jsonl"
    log.write_text("")
    started = shared_cowfs.ok("session", "start", "--agent", "codex", "--transcript", str(log))
    assert started["session"] == name
    shared_cowfs.ok("session", "end", name)


def test_states_and_sub_agents(shared_cowfs: Cowfs, work: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        agent = Agent(shared_cowfs, work, pid=process.pid)
        agent.tell("subagent-start", subagent="reviewer-1", subagent_kind="reviewer")
        agent.tell("subagent-start", subagent="tester-2", subagent_kind="tester")
        agent.tell("subagent-end", subagent="tester-2", subagent_kind="tester")
        [row] = [r for r in shared_cowfs.ok("sessions")["sessions"] if r["id"] == agent.session]
        assert row["state"] == "active"
        assert [(r["kind"], r["state"], r["parent"]) for r in row["subagents"]] == [
            ("reviewer", "active", agent.session),
            ("tester", "ended", agent.session),
        ]
        assert shared_cowfs.ok("status")["sessions"]["active"] >= 1
        below = shared_cowfs.ok("session", "show", f"{agent.session}/reviewer-1")["session"]
        assert (below["kind"], below["parent"]) == ("reviewer", agent.session)
    finally:
        process.kill()
        process.wait()
        assert process.stdin
        process.stdin.close()
    listed = shared_cowfs.ok("sessions")
    assert listed["sessions"][0]["id"] == agent.session
    [row] = [r for r in listed["sessions"] if r["id"] == agent.session]
    assert row["state"] == "interrupted"
    assert [r["state"] for r in row["subagents"]] == ["interrupted", "ended"]
    assert agent.session in listed["interrupted"]
    said = shared_cowfs.says("sessions")
    assert f"`cowfs resume {agent.session[:8]}` goes on with it" in said
    assert "  reviewer-1" in said
    status = shared_cowfs.says("status")
    assert "interrupted (cowfs resume)" in status
    agent.tell("session-end", reason="over")
    assert agent.session not in shared_cowfs.ok("sessions")["interrupted"]


def test_names_of_sessions(shared_cowfs: Cowfs, agent: Agent) -> None:
    shared_cowfs.ok("session", "start", "--agent", "mybot", "--id", f"{agent.session[:-1]}x")
    for name in (agent.session, agent.session[:-1], "last", "nope", f"{agent.session}/none"):
        if name == agent.session:
            assert shared_cowfs.ok("session", "show", name)["session"]["id"] == name
        elif name == "last":
            found = shared_cowfs.ok("session", "show", name)["session"]["id"]
            assert found == f"{agent.session[:-1]}x"
        else:
            error = shared_cowfs.fails("session", "show", name)
            ambiguous = agent.session.startswith(name)
            assert error["code"] == (
                "COWFS_AMBIGUOUS_SESSION" if ambiguous else "COWFS_UNKNOWN_SESSION"
            )
    offered = completed(shared_cowfs, f"cowfs session show {agent.session[:8]}")
    assert set(offered) == {f"plain,{agent.session}", f"plain,{agent.session[:-1]}x"}
    assert completed(shared_cowfs, "cowfs resume las") == ["plain,last"]
    shared_cowfs.ok("session", "end", f"{agent.session[:-1]}x")


def test_the_log_of_a_session(shared_cowfs: Cowfs, agent: Agent) -> None:
    shared_cowfs.ok("checkpoint", "-m", "by hand")
    found = shared_cowfs.ok("log", "--session", agent.session)["checkpoints"]
    assert [row["id"] for row in found] == [agent.second, agent.first]
    assert "add tax" in shared_cowfs.says("log", "--session", agent.session[:8])
    assert shared_cowfs.fails("log", "--session", "nope")["code"] == "COWFS_UNKNOWN_SESSION"


def test_wrong_words(shared_cowfs: Cowfs, agent: Agent) -> None:
    for words in (
        ["session", "start", "--agent", "my bot"],
        ["session", "end"],
        ["restore", agent.first, "--both", "--code"],
        ["restore", agent.first, "cart", "--conversation"],
        ["restore", agent.first, "--dry-run", "--expect", agent.first],
        ["restore"],
    ):
        assert shared_cowfs.fails(*words)["code"] == "COWFS_USAGE", words


def test_no_mount(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    cowfs.ok("mount", project)
    cowfs.cwd, cowfs.in_process = project, True
    agent = Agent(cowfs, project, pid=ended_pid())
    point = agent.prompt("go")
    agent.answer("gone")
    cowfs.ok("unmount")
    assert cowfs.fails("session", "start", "--agent", "x")["code"] == "COWFS_NOT_MOUNTED"
    assert cowfs.ok("status")["sessions"] == {"active": 0, "interrupted": 1}
    assert cowfs.ok("sessions")["interrupted"] == [agent.session]
    error = cowfs.fails("restore", point, "--both")
    assert error["code"] == "COWFS_NOT_COPYABLE"
    assert agent.copies() == []


# -- going back -----------------------------------------------------------------------------


def test_both(shared_cowfs: Cowfs, agent: Agent, work: Path) -> None:
    original = agent.transcript.read_bytes()
    said = shared_cowfs.says("restore", agent.second, "--both")
    assert (work / "cart").read_text() == "two\n"
    assert not (work / "tax").exists()
    [copy] = agent.copies()
    assert texts(copy) == ["make the cart", "it is made"]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert agent.transcript.read_bytes() == original
    assert f"    cd {work} && claude --resume {copy.stem}\n" in said
    assert "the prompt was\n    add tax\n    to the cart" in said
    assert "`cowfs undo` goes to it (the copy of the conversation stays)" in said
    shared_cowfs.ok("undo")
    assert (work / "cart").read_text() == "three\n"
    assert agent.copies() == [copy]
    shown = shared_cowfs.ok("session", "show", copy.stem)["session"]
    assert (shown["origin"], shown["state"]) == (agent.session, "ended")


def test_the_conversation_alone(shared_cowfs: Cowfs, agent: Agent, work: Path) -> None:
    answer = shared_cowfs.ok("restore", agent.second, "--conversation")
    assert (work / "cart").read_text() == "three\n"
    told = answer["conversation"]
    assert answer["rescue"] is None
    assert told["command"] == ["claude", "--resume", told["session"]]
    assert told["cwd"] == str(work)
    assert told["prompt"] == "add tax\nto the cart"
    assert [str(path) for path in agent.copies()] == told["files"]
    assert "the files are as they were" in shared_cowfs.says(
        "restore", agent.second, "--conversation"
    )


def test_the_code_alone(shared_cowfs: Cowfs, agent: Agent, work: Path) -> None:
    """Which is also what is done where nobody can be asked."""
    for words in (["--code"], []):
        answer = shared_cowfs.ok("restore", agent.second, *words)
        assert (work / "cart").read_text() == "two\n"
        assert answer["conversation"] is None
        shared_cowfs.ok("undo")
    assert agent.copies() == []


def test_some_paths_and_the_conversation(shared_cowfs: Cowfs, agent: Agent, work: Path) -> None:
    shared_cowfs.ok("restore", agent.second, "cart", "--both")
    assert (work / "cart").read_text() == "two\n"
    assert (work / "tax").exists()
    assert len(agent.copies()) == 1


def test_the_original_is_still_running(shared_cowfs: Cowfs, work: Path) -> None:
    """Two agents in one directory: the user is told."""
    agent = Agent(shared_cowfs, work, pid=os.getpid())
    agent.prompt("one")
    agent.answer("done")
    point = agent.prompt("two")
    [note] = shared_cowfs.ok("restore", point, "--both")["conversation"]["notes"]
    assert f"still running (pid {os.getpid()})" in note
    agent.tell("session-end")
    assert shared_cowfs.ok("restore", point, "--both")["conversation"]["notes"] == []


def test_a_preview(shared_cowfs: Cowfs, agent: Agent, work: Path) -> None:
    plan = shared_cowfs.ok("restore", agent.second, "--both", "--dry-run")
    assert plan["conversation"]["origin"] == agent.session
    assert plan["conversation"]["prompt"] == "add tax\nto the cart"
    assert {change["path"] for change in plan["changes"]} == {"cart", "tax"}
    said = shared_cowfs.says("restore", agent.second, "--both", "--dry-run")
    assert f"would copy the conversation of session {agent.session}" in said
    assert agent.copies() == []
    assert (work / "cart").read_text() == "three\n"


def test_what_has_no_conversation(shared_cowfs: Cowfs, agent: Agent, work: Path) -> None:
    for line, code in (
        (["restore", agent.first, "--both"], "COWFS_NOT_COPYABLE"),
        (["restore", agent.first, "--conversation"], "COWFS_NOT_COPYABLE"),
    ):
        assert shared_cowfs.fails(*line)["code"] == code
    before = shared_cowfs.ok("restore", agent.second)["rescue"]["id"]
    error = shared_cowfs.fails("restore", before, "--both")
    assert error["code"] == "COWFS_NO_CONVERSATION"
    assert (work / "cart").read_text() == "two\n"
    assert agent.copies() == []


# -- a state that was expected ----------------------------------------------------------------


def test_the_state_of_a_plan(shared_cowfs: Cowfs, agent: Agent, work: Path) -> None:
    plan = shared_cowfs.ok("restore", agent.first, "--dry-run")
    assert shared_cowfs.ok("status")["state"] in (plan["state"], None)
    shared_cowfs.ok("checkpoint")  # changes nothing
    (work / "surprise").write_text("somebody else's")
    error = shared_cowfs.fails("restore", agent.first, "--expect", plan["state"])
    assert error["code"] == "COWFS_STATE_MOVED"
    assert error["exit_code"] == 9
    assert error["details"]["paths"] == ["surprise"]
    assert error["details"]["count"] == 1
    assert any("surprise" in line for line in error["details"]["changes"])
    assert (work / "cart").read_text() == "three\n"
    again = shared_cowfs.ok("restore", agent.first, "--dry-run")["state"]
    shared_cowfs.ok("restore", agent.first, "--expect", again)
    assert (work / "cart").read_text() == "one\n"


def test_a_checkpoint_that_is_expected(shared_cowfs: Cowfs, agent: Agent, work: Path) -> None:
    now = shared_cowfs.ok("checkpoint", "-m", "planned here")["checkpoint"]["id"]
    (work / "temporary").write_text("gone again")
    (work / "temporary").unlink()
    (work / "cart").write_text("four\n")
    (work / "cart").write_text("three\n")
    shared_cowfs.ok("checkpoint", "-m", "the same state")
    error = shared_cowfs.fails("restore", agent.second, "--expect", agent.second)
    assert error["code"] == "COWFS_STATE_MOVED"
    assert {"cart", "tax"} <= set(error["details"]["paths"])
    (work / "tax").chmod(0o600)
    error = shared_cowfs.fails("restore", agent.second, "--both", "--expect", now)
    assert "tax" in error["message"]
    assert agent.copies() == []
    (work / "tax").chmod(0o644)
    shared_cowfs.ok("restore", agent.second, "--both", "--expect", now)
    assert (work / "cart").read_text() == "two\n"
    assert len(agent.copies()) == 1


def test_only_what_the_restore_is_about_is_expected(
    shared_cowfs: Cowfs, agent: Agent, work: Path
) -> None:
    state = shared_cowfs.ok("restore", agent.second, "--dry-run")["state"]
    (work / "tax").write_text("newer\n")
    (work / "build").mkdir()
    (work / "build" / "x.o").write_text("made again")
    shared_cowfs.ok("restore", agent.second, "cart", "--expect", state)
    state = shared_cowfs.ok("restore", agent.second, "--dry-run")["state"]
    (work / "build" / "x.o").write_text("and again")
    words = ("restore", agent.second, "--expect", state)
    shared_cowfs.ok(*words, "--exclude", "build")
    assert shared_cowfs.fails(*words)["code"] == "COWFS_STATE_MOVED"


# -- on a terminal ----------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["1", "2", "3", "4", ""])
def test_what_to_restore_is_asked(
    shared_cowfs: Cowfs, agent: Agent, work: Path, answer: str
) -> None:
    with terminal(shared_cowfs, "restore", agent.second) as (term, process):
        term.read_until(b"restore [4]: ")
        term.type(answer.encode() + b"\n")
        text = term.rest()
        assert process.wait(30) == 0
    files, conversation = answer in ("1", "3"), answer in ("1", "2")
    assert (work / "cart").read_text() == ("two\n" if files else "three\n")
    assert len(agent.copies()) == conversation
    assert ("nothing was changed" in text) == (not files and not conversation)


def test_a_prompt_is_chosen(shared_cowfs: Cowfs, agent: Agent, work: Path) -> None:
    with terminal(shared_cowfs, "restore", "--session", agent.session) as (term, process):
        term.read_until(b"(0: none) [0]: ")
        menu = [line.split() for line in term.seen.decode().splitlines()]
        [newest] = [row for row in menu if row[:1] == ["1"]]
        [oldest] = [row for row in menu if row[:1] == ["2"]]
        assert {"+1", "~1", "-0", "tax"} <= set(newest)
        assert {"+0", "~1", "-0", "make", "cart"} <= set(oldest)
        term.type(b"1\n")
        term.read_until(b"restore [4]: ")
        term.type(b"1\n")
        text = term.rest()
        assert process.wait(30) == 0
    assert (work / "cart").read_text() == "two\n"
    assert "the prompt was" in text
    [copy] = agent.copies()
    assert texts(copy) == ["make the cart", "it is made"]


def test_none_is_chosen(shared_cowfs: Cowfs, agent: Agent, work: Path) -> None:
    with terminal(shared_cowfs, "restore", "--session", agent.session) as (term, process):
        term.read_until(b"(0: none) [0]: ")
        term.type(b"\n")
        assert "nothing was changed" in term.rest()
        assert process.wait(30) == 0
    assert (work / "cart").read_text() == "three\n"


def test_somebody_works_while_the_menu_is_open(
    shared_cowfs: Cowfs, agent: Agent, work: Path
) -> None:
    with terminal(shared_cowfs, "restore", "--session", agent.session) as (term, process):
        term.read_until(b"(0: none) [0]: ")
        (work / "late").write_text("not to be lost")
        term.type(b"1\n")
        term.read_until(b"restore [4]: ")
        term.type(b"1\n")
        text = term.rest()
        assert process.wait(30) == 9
    assert "late" in text
    assert (work / "late").exists()
    assert (work / "cart").read_text() == "three\n"
    assert agent.copies() == []


def test_where_nobody_asks(shared_cowfs: Cowfs, agent: Agent, work: Path) -> None:
    """A checkpoint without a conversation, options, paths and --json leave nothing to ask."""
    plain = shared_cowfs.ok("restore", agent.second)["rescue"]["id"]
    for words in ([plain], [agent.second, "--code"], [agent.second, "cart"], ["--json", plain]):
        with terminal(shared_cowfs, "restore", *words) as (term, process):
            assert "never mind" not in term.rest()
            assert process.wait(30) == 0
    assert os.listdir(work)
