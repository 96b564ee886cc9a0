"""Help, completion, and what no command may do: a traceback, or noise when nobody listens."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cowfs import __version__
from cowfs.cli.app import COMMANDS
from tests.cli.command import Cowfs


@pytest.fixture
def quickly(cowfs: Cowfs) -> Cowfs:
    """Commands without a process of their own."""
    cowfs.in_process = True
    return cowfs


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(quickly: Cowfs, command: str) -> None:
    said = quickly.says(command, "--help")
    assert said.startswith(f"Usage: cowfs {command} ")
    assert "\nExamples:\n" in said
    assert "--json" in said
    assert quickly.says(command, "-h") == said


def test_the_help_of_all(cowfs: Cowfs) -> None:
    said = cowfs.says("--help")
    for command in COMMANDS:
        assert f"\n  {command} " in said
    assert cowfs.says("--version") == f"cowfs {__version__}\n"
    nothing = cowfs.run()
    assert (nothing.code, nothing.raw) == (1, b"")
    assert nothing.err == said
    assert cowfs.run("--json").document["error"]["code"] == "COWFS_USAGE"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script(cowfs: Cowfs, shell: str) -> None:
    if not shutil.which("bash"):
        pytest.skip("click looks for bash to tell its version")
    script = cowfs.says("completion", shell)
    assert "_COWFS_COMPLETE" in script
    assert cowfs.ok("completion", shell)["script"].strip() == script.strip()
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script.encode(), check=True)


def completed(cowfs: Cowfs, line: str) -> list[str]:
    """What bash would offer at the end of a line."""
    words = line.split(" ")
    before, cowfs.in_process = dict(cowfs.env), True
    cowfs.env |= {
        "_COWFS_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    try:
        return cowfs.says().splitlines()
    finally:
        cowfs.env, cowfs.in_process = before, False


def test_completion(shared_cowfs: Cowfs, workspace: Path) -> None:
    one = shared_cowfs.ok("checkpoint", "--label", "complete-me")["checkpoint"]["id"][:8]
    assert completed(shared_cowfs, "cowfs ver") == ["plain,verify"]
    assert "plain,--label" in completed(shared_cowfs, "cowfs checkpoint --")
    for command in ("restore", "diff", "export", "-C src restore", "diff complete-me"):
        offered = completed(shared_cowfs, f"cowfs {command} ")
        assert f"plain,{one}" in offered, command
        assert "plain,complete-me" in offered, command
    assert completed(shared_cowfs, "cowfs restore comp") == ["plain,complete-me"]
    assert completed(shared_cowfs, "cowfs show comp") == ["plain,complete-me:"]
    assert "file," in completed(shared_cowfs, "cowfs diff ")
    assert completed(shared_cowfs, "cowfs mount pr") == ["dir,pr"]
    assert completed(shared_cowfs, "cowfs restore complete-me sr") == ["file,sr"]


def test_completion_outside_of_a_workspace(cowfs: Cowfs) -> None:
    assert completed(cowfs, "cowfs restore ") in ([], [""])


@pytest.mark.parametrize("command", ["log", "status", "checkpoint", "diff", "verify"])
def test_nobody_reads(shared_cowfs: Cowfs, workspace: Path, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with shared_cowfs.start(command, "--json", stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        _, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode == 141


@pytest.mark.parametrize("command", ["log", "status"])
def test_stdout_is_full(shared_cowfs: Cowfs, workspace: Path, command: str) -> None:
    with (
        open("/dev/full", "wb") as full,
        shared_cowfs.start(command, stdout=full, stderr=subprocess.PIPE) as process,
    ):
        _, err = process.communicate(timeout=60)
    assert process.returncode == 54
    assert err.startswith(b"cowfs: the output cannot be written")
    assert b"No space left" in err
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err


def test_what_is_done_is_not_denied_when_stdout_is_full(cowfs: Cowfs, mounted: Path) -> None:
    """Who took the error for "nothing was done" would do it twice."""
    before = cowfs.ok("log")["total"]
    with (
        open("/dev/full", "wb") as full,
        cowfs.start("checkpoint", stdout=full, stderr=subprocess.PIPE) as process,
    ):
        _, err = process.communicate(timeout=60)
    assert process.returncode == 54
    assert b"What the command did is done" in err
    assert cowfs.ok("log")["total"] == before + 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_stdout_that_cannot_take_every_character(
    cowfs: Cowfs, mounted: Path, encoding: str
) -> None:
    """A locale that is not UTF-8 is no reason not to show the log: what it lacks is escaped, and
    bytes of names stay what they are."""
    cowfs.in_process = False
    cowfs.ok("checkpoint", "-m", "\u00fc \u20ac")
    (mounted / os.fsdecode(b"odd\xff")).touch()
    cowfs.env["PYTHONIOENCODING"] = encoding
    shown = {"ascii": b"\\xfc \\u20ac", "latin-1": b"\xfc \\u20ac"}
    wanted = shown.get(encoding, "\u00fc \u20ac".encode())
    for command in ("log", "status"):
        assert wanted in cowfs.run(command).raw
    assert b"A  odd\xff\n" in cowfs.run("diff").raw


def test_an_unexpected_error_has_a_traceback_only_for_debugging(
    shared_cowfs: Cowfs, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = shared_cowfs.top / "broken"
    broken.mkdir()
    (broken / "msgspec.py").write_text("raise RuntimeError('broken on purpose')\n")
    monkeypatch.setitem(
        shared_cowfs.env, "PYTHONPATH", f"{broken}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    )
    error = shared_cowfs.fails("log")
    assert (error["code"], error["exit_code"]) == ("COWFS_INTERNAL", 70)
    assert "broken on purpose" in error["message"]
    monkeypatch.setitem(shared_cowfs.env, "COWFS_DEBUG", "1")
    with shared_cowfs.start("log", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        _, err = process.communicate(timeout=60)
    assert b"Traceback" in err
