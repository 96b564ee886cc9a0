"""The plugin for Claude Code that comes with cowfs: names, paths, JSON, and the same hooks as
`cowfs hooks install`. Claude Code's own validation needs Claude Code (tests/clients)."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cowfs import __version__
from cowfs.agents.claude.settings import EVENTS, group
from cowfs.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "plugins"
PLUGIN = PLUGINS / "claude-code"
SKILLS = ("checkpoint", "log", "rewind")


def read(name: str) -> dict[str, Any]:
    found = json.loads((PLUGIN / name).read_text())
    assert isinstance(found, dict)
    return found


def test_its_manifest() -> None:
    manifest = read(".claude-plugin/plugin.json")
    assert (manifest["name"], manifest["version"]) == ("cowfs", __version__)
    assert manifest["description"]


def test_the_marketplace_names_it() -> None:
    found = json.loads((PLUGINS / ".claude-plugin" / "marketplace.json").read_text())
    assert re.fullmatch(r"[a-z][a-z0-9-]*", found["name"])
    assert found["owner"]["name"]
    (plugin,) = found["plugins"]
    assert plugin["name"] == "cowfs"
    assert (PLUGINS / plugin["source"]).resolve() == PLUGIN


def test_its_hooks_are_those_that_are_installed() -> None:
    hooks = read("hooks/hooks.json")["hooks"]
    assert hooks == {name: [group(name, ("cowfs",))] for name in EVENTS}


def test_its_server_is_a_command_of_cowfs() -> None:
    server = read(".mcp.json")["mcpServers"]["cowfs"]
    assert server["command"] == "cowfs"
    assert server["args"][0] in COMMANDS


def test_it_has_these_skills_and_no_other_files() -> None:
    assert sorted(path.name for path in (PLUGIN / "skills").iterdir()) == sorted(SKILLS)
    files = {str(path.relative_to(PLUGIN)) for path in PLUGIN.rglob("*") if path.is_file()}
    assert files == {
        ".claude-plugin/plugin.json",
        ".mcp.json",
        "hooks/hooks.json",
        *(f"skills/{name}/SKILL.md" for name in SKILLS),
    }


@pytest.mark.parametrize("name", SKILLS)
def test_a_skill(name: str) -> None:
    text = (PLUGIN / "skills" / name / "SKILL.md").read_text()
    found = re.match(r"---\n(.*?)\n---\n(.+)", text, re.S)
    assert found
    fields = dict(line.split(": ", 1) for line in found[1].splitlines())
    assert fields["description"]
    assert "$ARGUMENTS" in found[2]
    for command in re.findall(r"`cowfs (\w+)", found[2]):
        assert command in COMMANDS
    # Going back is for the user to do.
    assert ("disable-model-invocation" in fields) == (name == "rewind")
    assert "Bash(cowfs restore" not in fields["allowed-tools"]


def test_it_is_in_what_is_published() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "/plugins" in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
