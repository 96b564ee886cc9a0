"""Hooks in the settings of an agent: put in, taken out, and all else as it was."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from cowfs import agents
from cowfs.agents.claude.settings import EVENTS, group
from cowfs.agents.settings import PROJECT, USER, Where
from cowfs.errors import AgentSettingsError, UsageError
from cowfs.hooks.installing import Plan, carry_out, plan

OTHERS = """\
{
    "permissions": {"allow": ["Bash(make:*)"],   "deny": []},
    "hooks": {
        "Stop": [
            {"hooks": [{"type": "command", "command": "notify-send done"}]}
        ],
        "PreToolUse": []
    },
    "env": {"X": "\\u00e4"}
}"""


class Home:
    """A home directory with settings of Claude Code in it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.file = top / ".claude" / "settings.json"
        self.environment: dict[str, str] = {}
        self.command = ("/opt/bin/cowfs",)
        self.statusline = False

    def write(self, text: str) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_bytes(text.encode())

    def where(self, scope: str = USER) -> Where:
        project = str(self.top / "project")
        return Where(scope, str(self.top), project, self.environment, self.command, self.statusline)

    def plan(self, *, remove: bool = False) -> Plan:
        (found,) = plan("claude", self.where(), remove=remove)
        return found

    def install(self) -> bool:
        """Returns whether something was changed."""
        found = self.plan()
        if found.changes:
            carry_out(found, remove=False)
        return found.changes

    def uninstall(self) -> bool:
        found = self.plan(remove=True)
        if found.changes:
            carry_out(found, remove=True)
        return found.changes

    @property
    def value(self) -> Any:
        return json.loads(self.file.read_bytes())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return Home(tmp_path)


def wanted(command: str = "/opt/bin/cowfs") -> dict[str, Any]:
    return {name: [group(name, (command,))] for name in EVENTS}


def test_where_there_is_no_file_yet(home: Home) -> None:
    assert home.install()
    assert home.value == {"hooks": wanted()}
    assert home.uninstall()
    assert not home.file.parent.exists(), "the directory was made for it"


def test_in_a_directory_that_is_there(home: Home) -> None:
    home.file.parent.mkdir()
    home.install()
    home.uninstall()
    assert list(home.file.parent.iterdir()) == []


def test_what_is_there_stays(home: Home) -> None:
    home.write(OTHERS)
    home.install()
    value, before = home.value, json.loads(OTHERS)
    assert value["hooks"]["Stop"] == [*before["hooks"]["Stop"], group("Stop", home.command)]
    assert value["hooks"]["PreToolUse"] == [group("PreToolUse", home.command)]
    assert {key: value[key] for key in ("permissions", "env")} == {
        key: before[key] for key in ("permissions", "env")
    }
    assert list(value) == list(before)
    text = home.file.read_text()
    for line in (OTHERS.splitlines()[1], OTHERS.splitlines()[-2]):
        assert line in text


@pytest.mark.parametrize(
    "text",
    [
        OTHERS,
        OTHERS + "\n\n",
        "{}",
        "{ }\n",
        '{"hooks":{}}',
        '{"hooks": {"Stop": [ ]}}\n',
        "{\r\n}",
    ],
)
def test_uninstalled_byte_for_byte(home: Home, text: str) -> None:
    home.write(text)
    assert home.install()
    assert not home.install(), "it is done once"
    assert home.uninstall()
    assert home.file.read_bytes() == text.encode()
    assert not home.uninstall()


def test_uninstalled_after_somebody_changed_the_file(home: Home) -> None:
    home.write(OTHERS)
    home.install()
    home.write(home.file.read_text().replace('"X"', '"Y"'))
    home.uninstall()
    before = json.loads(OTHERS.replace('"X"', '"Y"'))
    del before["hooks"]["PreToolUse"]  # an empty list of somebody's, or of ours: nobody knows
    assert home.value == before
    assert OTHERS.splitlines()[1] in home.file.read_text()


def test_uninstalled_where_nothing_is_remembered(home: Home) -> None:
    home.write('{\n  "model": "x"\n}\n')
    home.install()
    for path in (home.top / "data" / "cowfs" / "hooks").iterdir():
        path.unlink()
    home.uninstall()
    assert home.file.read_text() == '{\n  "model": "x"\n}\n'


def test_a_handler_that_somebody_put_beside_ours_stays(home: Home) -> None:
    home.install()
    value = home.value
    other = {"type": "command", "command": "true"}
    value["hooks"]["Stop"][0]["hooks"].append(other)
    home.write(json.dumps(value, indent=2))
    home.uninstall()
    assert home.value == {"hooks": {"Stop": [{"hooks": [other]}]}}


def test_hooks_of_another_version_are_replaced(home: Home) -> None:
    home.command = ("/old/cowfs",)
    home.write(OTHERS)
    home.install()
    old = home.value
    old["hooks"]["Gone"] = [{"hooks": [{"type": "command", "command": "cowfs hook claude Gone"}]}]
    home.write(json.dumps(old, indent=4))
    home.command = ("/new/cowfs",)
    found = home.plan()
    assert (found.ours, found.hooks, found.wanted) == (len(EVENTS) + 1, 0, len(EVENTS))
    home.install()
    text = home.file.read_text()
    assert "/old/cowfs" not in text
    assert "Gone" not in text
    assert home.value["hooks"]["Stop"][1] == group("Stop", ("/new/cowfs",))
    assert home.plan().hooks == len(EVENTS)


def test_an_update_still_comes_back_byte_for_byte(home: Home) -> None:
    home.write(OTHERS)
    home.command = ("/old/cowfs",)
    home.install()
    home.command = ("/new/cowfs",)
    home.install()
    home.uninstall()
    assert home.file.read_text() == OTHERS


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"a": 1,}', '{"hooks": []}', "{} {}"])
def test_a_file_that_makes_no_sense_is_not_touched(home: Home, text: str) -> None:
    home.write(text)
    with pytest.raises(AgentSettingsError, match=r"settings\.json cannot be changed"):
        home.plan()
    assert home.file.read_text() == text


def test_a_file_that_is_none(home: Home) -> None:
    home.file.parent.mkdir()
    os.mkfifo(home.file)
    with pytest.raises(AgentSettingsError, match="regular"):
        home.plan()
    home.file.unlink()
    home.file.mkdir()
    with pytest.raises(AgentSettingsError):
        home.plan()
    home.file.rmdir()
    home.file.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(AgentSettingsError, match="UTF-8"):
        home.plan()


def test_a_file_that_changed_since_it_was_shown(home: Home) -> None:
    home.write(OTHERS)
    found = home.plan()
    home.write("{}")
    with pytest.raises(AgentSettingsError, match="just now"):
        carry_out(found, remove=False)
    assert home.file.read_text() == "{}"


def test_mode_and_symbolic_links_stay(home: Home) -> None:
    real = home.top / "dotfiles.json"
    real.write_text(OTHERS)
    real.chmod(0o640)
    home.file.parent.mkdir()
    home.file.symlink_to("../dotfiles.json")
    home.install()
    assert home.file.is_symlink()
    assert "hooks" in json.loads(real.read_text())
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    home.uninstall()
    assert real.read_text() == OTHERS


def test_a_new_file_is_as_any_other(home: Home) -> None:
    before = os.umask(0o027)
    try:
        home.install()
    finally:
        os.umask(before)
    assert stat.S_IMODE(home.file.stat().st_mode) == 0o640
    (memory,) = (home.top / "data" / "cowfs" / "hooks").iterdir()
    assert stat.S_IMODE(memory.stat().st_mode) == 0o600


def test_the_directory_that_claude_code_is_told_of(home: Home) -> None:
    home.environment["CLAUDE_CONFIG_DIR"] = str(home.top / "elsewhere")
    home.install()
    assert not home.file.exists()
    assert (home.top / "elsewhere" / "settings.json").exists()


def test_a_project(home: Home) -> None:
    (found,) = plan("claude", home.where(PROJECT))
    assert found.path == str(home.top / "project" / ".claude" / "settings.json")


def test_the_status_line_only_if_there_is_none(home: Home) -> None:
    home.statusline = True
    home.install()
    assert home.value["statusLine"]["command"] == "/opt/bin/cowfs statusline"
    home.write('{"statusLine": {"type": "command", "command": "mine"}}')
    home.install()
    assert home.value["statusLine"]["command"] == "mine"
    home.write(json.dumps(home.value))
    home.uninstall()
    assert home.value == {"statusLine": {"type": "command", "command": "mine"}}


def test_our_status_line_is_taken_out_again(home: Home) -> None:
    home.statusline = True
    home.install()
    home.write(json.dumps(home.value))
    home.command = ("/elsewhere/cowfs",)
    home.uninstall()
    assert home.value == {}


@pytest.mark.parametrize("scope", [USER, PROJECT])
@pytest.mark.parametrize("agent", [n for n in agents.NAMES if agents.settings_of(n) is not None])
def test_every_agent(home: Home, agent: str, scope: str) -> None:
    """Installed, again, for another program, and taken out: nothing is left."""

    def change(*, remove: bool = False) -> list[bool]:
        planned = plan(agent, home.where(scope), remove=remove)
        for item in planned:
            assert Path(item.target).is_relative_to(home.top)
            if item.changes:
                carry_out(item, remove=remove)
        return [item.changes for item in planned]

    (home.top / "project").mkdir()
    before = {path for path in home.top.rglob("*") if "data" not in path.parts}
    assert all(change())
    assert not any(change())
    assert all(item.hooks == item.ours == item.wanted for item in plan(agent, home.where(scope)))
    home.command = ("/some/where else/cowfs",)
    assert all(change())
    assert not any(change())
    assert all(change(remove=True))
    assert {path for path in home.top.rglob("*") if "data" not in path.parts} == before


def test_an_agent_without_settings() -> None:
    with pytest.raises(UsageError, match="claude"):
        plan("nobody", Where(USER, "/h", "/p", {}))


def test_the_diff(home: Home) -> None:
    home.write('{\n  "a": 1\n}')
    lines = home.plan().diff().splitlines()
    assert lines[0] == f"--- {home.file}"
    assert '-  "a": 1' in lines
    assert '+  "a": 1,' in lines
    assert "\\ No newline at end of file" in lines
