"""The plugin of OpenCode, run by Node.js with a client that the test has made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cowfs.agents import events
from cowfs.agents.base import MAIN
from cowfs.agents.opencode.adapter import OpenCode
from cowfs.agents.opencode.hooks import event
from cowfs.agents.opencode.settings import plugin

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node.js is not installed")

DRIVER = Path(__file__).with_name("driver.mjs")
HOOK = """\
import json, sys
said = json.load(sys.stdin)
with open({log!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], said]) + "\\n")
print(json.dumps({{"context": "cowfs says " + sys.argv[3]}}))
"""


class Run:
    """What the plugin has done. shown: what the driver printed. told: events, and what was said of
    them, in order. directory: with its files."""

    def __init__(self, top: Path, mode: str, command: tuple[str, ...] = ()) -> None:
        log = top / "told"
        log.touch()
        (top / "hook.py").write_text(HOOK.format(log=str(log)))
        words = command or (sys.executable, str(top / "hook.py"))
        (top / "cowfs.mjs").write_text(plugin(words))
        (top / "driver.mjs").write_text(DRIVER.read_text())
        assert NODE is not None
        done = subprocess.run(
            [NODE, str(top / "driver.mjs"), mode],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(top),
                "XDG_STATE_HOME": str(top / "state"),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        self.shown = json.loads(done.stdout)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        self.told: list[tuple[str, dict[str, Any]]] = []
        for (hook, agent, name), said in lines:
            assert (hook, agent) == ("hook", "opencode")
            made = event(name, said, {})
            assert made is not None
            self.told.append((name, made))
        self.directory = top / "state" / "cowfs" / "opencode"

    def read(self, path: str) -> bytes:
        return (self.directory / path).read_bytes()


def test_a_session(tmp_path: Path) -> None:
    run = Run(tmp_path, "new")
    assert [name for name, _ in run.told] == [
        events.SESSION_START,
        events.PROMPT,
        events.TOOL_START,
        events.TOOL_END,
        events.SUBAGENT_START,
        events.SUBAGENT_END,
        events.TURN_END,
        events.SESSION_END,
    ]
    told = dict(run.told)
    main = str(run.directory / "ses_a.jsonl")
    for name, made in run.told:
        assert (made["session"], made["transcript"], made["cwd"]) == ("ses_a", main, "/w")
        assert ("subagent" in made) == name.startswith("subagent")
    assert told[events.SESSION_START]["source"] == "startup"
    assert told[events.PROMPT]["prompt"] == "add them up"
    assert told[events.PROMPT]["prompt_id"] == "msg_2"
    assert told[events.TOOL_START]["tool_text"] == "make"
    assert told[events.SUBAGENT_START]["subagent_transcript"] == str(
        run.directory / "ses_a" / "ses_b.jsonl"
    )
    first, hint = run.shown["asked"]
    assert first["text"] == "add them up"
    assert hint["text"] == "cowfs says session-start\ncowfs says prompt"
    assert hint["id"] > first["id"]
    assert run.shown["output"]["output"] == "done\n\ncowfs says tool-end"


def test_the_files(tmp_path: Path) -> None:
    run = Run(tmp_path, "new")
    files = {MAIN: run.read("ses_a.jsonl")}
    read = OpenCode().read(files)
    assert (read.title, read.turns) == ("Adding", ())
    at_the_end_of_the_turn = files[MAIN].split(b'{"removed"')[0]
    assert [turn.prompt for turn in OpenCode().read({MAIN: at_the_end_of_the_turn}).turns] == [
        "add them up"
    ]
    assert [source.name for source in OpenCode().sources(str(run.directory / "ses_a.jsonl"))] == [
        MAIN,
        "ses_a/ses_b.jsonl",
    ]
    for path in run.directory.rglob("*.jsonl"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_one_that_goes_on(tmp_path: Path) -> None:
    """What was said before is read from the database, and nothing is written twice."""
    run = Run(tmp_path, "resumed")
    assert run.told[0][1]["source"] == "resume"
    once = run.read("ses_a.jsonl")
    turns = OpenCode().read({MAIN: once.split(b'{"removed"')[0]}).turns
    assert [turn.prompt for turn in turns] == ["before", "add them up"]
    again = Run(tmp_path, "resumed").read("ses_a.jsonl")
    assert again.startswith(once)
    assert again.count(b'"before"') == 1


@pytest.mark.parametrize(
    ("mode", "command"),
    [("broken", ()), ("new", ("/nowhere/cowfs",)), ("new", ("false",))],
    ids=["database", "not-installed", "fails"],
)
def test_opencode_goes_on_whatever_goes_wrong(
    tmp_path: Path, mode: str, command: tuple[str, ...]
) -> None:
    run = Run(tmp_path, mode, command)
    assert [part["text"] for part in run.shown["asked"]] == ["add them up"]
    assert run.shown["output"]["output"] == "done"
