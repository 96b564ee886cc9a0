"""`cowfs run`."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Cowfs
from tests.cli.terminal import terminal

pytestmark = pytest.mark.usefixtures("own_processes")


@pytest.fixture
def mounted(shared_cowfs: Cowfs, workspace: Path) -> Path:
    """One mount for all tests, each with the same files to begin with."""
    for path in workspace.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (workspace / "src").mkdir()
    (workspace / "readme").write_text("one\ntwo\n")
    (workspace / "src" / "main.c").write_text("int main;\n")
    return workspace


def python(text: str) -> list[str]:
    """A command that runs a program."""
    return [sys.executable, "-c", text]


def messages(shared_cowfs: Cowfs) -> list[str]:
    return [row["message"] for row in shared_cowfs.ok("log")["checkpoints"]]


def test_what_it_changed(shared_cowfs: Cowfs, mounted: Path) -> None:
    change = "echo more >> readme; rm -r src; echo out; echo err >&2"
    result = shared_cowfs.run("run", "--", "sh", "-c", change)
    assert (result.code, result.out) == (0, "out\n")
    lines = result.err.splitlines()
    assert lines[0] == "err"
    assert lines[1].startswith("cowfs: +0 ~1 -2: ")
    assert {"cowfs:   M  readme", "cowfs:   D  src/", "cowfs:   D  src/main.c"} < set(lines)
    back = next(line for line in lines if line.endswith("takes it back"))
    words = back.split("`")[1].split()
    assert words[:2] == ["cowfs", "restore"]
    shared_cowfs.ok("restore", words[2])
    assert (mounted / "readme").read_text() == "one\ntwo\n"
    assert (mounted / "src" / "main.c").exists()
    assert messages(shared_cowfs)[1] == f"after: sh -c '{change}'"


def test_as_json(shared_cowfs: Cowfs, mounted: Path) -> None:
    result = shared_cowfs.run(
        "run", "--json", "-m", "why", "--", "sh", "-c", "echo out; >new; exit 4"
    )
    assert result.code == 4
    document = result.document
    assert result.err == "out\n"
    assert document["ok"] is True
    assert document["exit_code"] == 4
    assert document["command"] == ["sh", "-c", "echo out; >new; exit 4"]
    assert [change["path"] for change in document["changes"]] == ["new"]
    assert document["counts"]["added"] == 1
    assert document["after"]["message"] == "after: why"
    assert document["take_back"] == f"cowfs restore {document['before']['id'][:8]}"
    shared_cowfs.ok("restore", document["before"]["id"])
    assert not (mounted / "new").exists()


def test_nothing_changed(shared_cowfs: Cowfs, mounted: Path) -> None:
    (mounted / "edited").write_text("x")
    result = shared_cowfs.run("run", "true")
    assert (result.code, result.out, result.err) == (0, "", "cowfs: nothing changed\n")
    assert messages(shared_cowfs)[0] == "before: true"
    document = shared_cowfs.run("run", "--json", "true").document
    assert document["changes"] == []
    assert document["before"]["id"] == document["after"]["id"]
    assert document["take_back"] is None
    assert messages(shared_cowfs)[0] == "before: true"


def test_exit_codes(shared_cowfs: Cowfs, mounted: Path) -> None:
    (mounted / "plain").write_text("no program")
    for code, words in {
        0: ["true"],
        1: ["false"],
        42: ["sh", "-c", "exit 42"],
        126: ["./plain"],
        127: ["there-is-no-such-command"],
        128 + signal.SIGKILL: ["sh", "-c", "kill -KILL $$"],
    }.items():
        assert shared_cowfs.run("run", "--", *words).code == code, words
    result = shared_cowfs.run("run", "there-is-no-such-command")
    assert "there-is-no-such-command cannot be run: no such file or directory" in result.err


def test_what_a_failing_command_changed(shared_cowfs: Cowfs, mounted: Path) -> None:
    result = shared_cowfs.run("run", "sh", "-c", "rm readme; exit 3")
    assert result.code == 3
    assert "cowfs:   D  readme\n" in result.err


def test_where_it_runs(shared_cowfs: Cowfs, mounted: Path) -> None:
    assert shared_cowfs.run("run", "pwd", cwd=mounted / "src").out == f"{mounted / 'src'}\n"
    assert shared_cowfs.run("-C", mounted / "src", "run", "pwd", cwd=shared_cowfs.top).out == (
        f"{mounted / 'src'}\n"
    )


def test_options_after_the_command_are_its_own(shared_cowfs: Cowfs, mounted: Path) -> None:
    assert shared_cowfs.run("run", "echo", "-m", "--json", "--", "x").out == "-m --json -- x\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on(shared_cowfs: Cowfs, mounted: Path, number: signal.Signals) -> None:
    program = (
        "import signal, sys\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, {{{int(number)}}})\n"
        "print('ready', flush=True)\n"
        f"signal.sigwait({{{int(number)}}})\n"
        "open('told', 'w').close()\n"
        "sys.exit(9)\n"
    )
    with shared_cowfs.start("run", "--", *python(program), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(30) == 9
    assert (mounted / "told").exists()


def test_a_signal_that_ends_the_command(shared_cowfs: Cowfs, mounted: Path) -> None:
    program = python("print('ready', flush=True); import signal; signal.pause()")
    with shared_cowfs.start("run", "--", *program, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM


def test_not_mounted(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    assert cowfs.fails("run", "touch", "x", cwd=project)["code"] == "COWFS_NOT_A_WORKSPACE"
    cowfs.ok("mount", "project")
    cowfs.ok("unmount", "project")
    error = cowfs.fails("run", "touch", "x", cwd=project)
    assert error["code"] == "COWFS_NOT_MOUNTED"
    assert not (project / "x").exists()
    assert cowfs.fails("run", cwd=project)["code"] == "COWFS_USAGE"


def test_the_daemon_ends_meanwhile(cowfs: Cowfs, project: Path, needs_fuse: None) -> None:
    cowfs.ok("mount", project)
    unmount = cowfs.argv("unmount", "--force", project)
    result = cowfs.run("-C", project, "run", "--", "sh", "-c", 'cd /; "$@"; exit 5', "sh", *unmount)
    assert result.code == 5
    assert "is not mounted" in result.err


# -- on a terminal ------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "taken"), [(b"y\n", True), (b"n\n", False), (b"\n", False)])
def test_the_offer(shared_cowfs: Cowfs, mounted: Path, answer: bytes, taken: bool) -> None:
    with terminal(shared_cowfs, "run", "--", "rm", "-r", "src") as (term, process):
        term.read_until(b"take it back? [y/N]: ")
        assert not (mounted / "src").exists()
        term.type(answer)
        text = term.rest()
        assert process.wait(30) == 0
    assert (mounted / "src" / "main.c").exists() is taken
    assert ("taken back" in text) is taken
    if taken:
        again = text.split("`cowfs restore ")[-1].split("`")[0]
        shared_cowfs.ok("restore", again)
        assert not (mounted / "src").exists()


def test_somebody_works_while_it_is_asked(shared_cowfs: Cowfs, mounted: Path) -> None:
    with terminal(shared_cowfs, "run", "--", "rm", "-r", "src") as (term, process):
        term.read_until(b"take it back? [y/N]: ")
        (mounted / "late").write_text("not to be lost")
        term.type(b"y\n")
        text = term.rest()
        assert process.wait(30) == 9
    assert "late" in text
    assert (mounted / "late").exists()
    assert not (mounted / "src").exists()


@pytest.mark.parametrize("words", [["--no-undo-offer", "--", "rm", "readme"], ["--", "true"]])
def test_no_offer(shared_cowfs: Cowfs, mounted: Path, words: list[str]) -> None:
    with terminal(shared_cowfs, "run", *words) as (term, process):
        assert "[y/N]" not in term.rest()
        assert process.wait(30) == 0


def test_the_command_has_the_terminal(shared_cowfs: Cowfs, mounted: Path) -> None:
    program = "import os, sys; print(sys.stdin.isatty(), os.tcgetpgrp(0) == os.getpgrp())"
    with terminal(shared_cowfs, "run", "--", *python(program)) as (term, _):
        assert "True True" in term.rest()


def test_ctrl_c_goes_to_the_command(shared_cowfs: Cowfs, mounted: Path) -> None:
    """Once, and cowfs goes on to say what was changed."""
    program = (
        "import signal, sys\n"
        "times = 0\n"
        "def handle(*_):\n"
        "    global times\n"
        "    times += 1\n"
        "signal.signal(signal.SIGINT, handle)\n"
        "open('begun', 'w').close()\n"
        "print('ready', flush=True)\n"
        "while not times: signal.pause()\n"
        "signal.sigtimedwait({signal.SIGINT}, 0.2)\n"
        "print('times', times, flush=True)\n"
        "sys.exit(7)\n"
    )
    with terminal(shared_cowfs, "run", "--no-undo-offer", "--", *python(program)) as (
        term,
        process,
    ):
        term.read_until(b"ready")
        term.type(b"\x03")
        text = term.rest()
        assert process.wait(30) == 7
    assert "times 1" in text
    assert "A  begun" in text
