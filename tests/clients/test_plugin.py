"""The plugin for Claude Code: alone, and beside the same hooks in the settings."""

from __future__ import annotations

import json
from pathlib import Path

from tests.clients.agents import Claude
from tests.clients.conftest import StartClaude
from tests.clients.looking import prompts, the_session
from tests.clients.scenes import MAKE, bash
from tests.clients.stub import Script

PLUGIN = Path(__file__).resolve().parents[2] / "plugins" / "claude-code"
SCRIPT: Script = {MAKE: [bash("echo 1 > one; rm readme"), "It is made."]}


def told(agent: Claude) -> int:
    """How often the model was told what the command changed."""
    said = json.dumps(agent.stub.last(MAKE).body["messages"])
    assert r"created: one\ndeleted: readme" in said
    return said.count("changed while this ran")


def run_with_the_plugin(agent: Claude) -> None:
    agent.run(f"{MAKE} now", "--plugin-dir", str(PLUGIN))
    assert list(prompts(agent)) == [f"{MAKE} now"]
    assert the_session(agent)["state"] == "ended"
    assert told(agent) == 1


def test_it_is_valid(claude: StartClaude) -> None:
    claude({}).execute(["plugin", "validate", "--strict", str(PLUGIN)])


def test_the_plugin_alone(claude: StartClaude) -> None:
    agent = claude(SCRIPT)
    agent.cowfs.ok("hooks", "uninstall", "claude", "--project", "--yes")
    assert not (agent.top / ".claude").exists()
    run_with_the_plugin(agent)


def test_both(claude: StartClaude) -> None:
    run_with_the_plugin(claude(SCRIPT))


def test_its_command(claude: StartClaude) -> None:
    note = "before-the-storm"
    agent = claude({note: [bash(f"cowfs checkpoint -m {note}"), "It is kept."]})
    agent.run(f"/cowfs:checkpoint {note}", "--plugin-dir", str(PLUGIN))
    assert "cowfs checkpoint -m MESSAGE" in agent.stub.last(note)
    (kept,) = agent.cowfs.ok("log", "--kind", "manual")["checkpoints"]
    assert (kept["message"], kept["session"]) == (note, the_session(agent)["id"])
    assert list(prompts(agent)) == [f"/cowfs:checkpoint {note}"]
