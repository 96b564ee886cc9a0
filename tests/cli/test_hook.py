"""`cowfs hook`, `cowfs hooks` and `cowfs statusline`, as an agent runs them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Cowfs
from tests.cli.terminal import terminal
from tests.cli.test_quick import _HEAVY, _SPY

pytestmark = pytest.mark.usefixtures("own_processes")

_SECONDS = 60


class Agent:
    """An agent that runs its hooks in a workspace."""

    def __init__(self, cowfs: Cowfs, workspace: Path, session: str) -> None:
        self.cowfs = cowfs
        self.workspace = workspace
        self.session = session
        self.prompts = 0

    def said(self, name: str, **fields: Any) -> bytes:
        known = {
            "session_id": self.session,
            "transcript_path": str(self.cowfs.top / f"{self.session}.jsonl"),
            "cwd": str(self.workspace),
            "hook_event_name": name,
            "prompt_id": f"{self.session}-p{self.prompts}",
        }
        return json.dumps({**known, **fields}).encode()

    def hook(self, name: str, **fields: Any) -> Any:
        """What a hook answers, None for nothing."""
        with self.cowfs.start(
            "hook",
            "claude",
            name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            out, err = process.communicate(self.said(name, **fields), timeout=_SECONDS)
        assert (process.returncode, err) == (0, b"")
        return json.loads(out) if out else None

    def prompt(self, text: str) -> None:
        self.prompts += 1
        assert self.hook("UserPromptSubmit", prompt=text) is None

    def bash(self, command: str) -> str:
        """A tool call; returns what the agent is told about it."""
        call = {"tool_name": "Bash", "tool_input": {"command": command}}
        call["tool_use_id"] = f"{self.session}-{command}"
        assert self.hook("PreToolUse", **call) is None
        subprocess.run(["sh", "-c", command], cwd=self.workspace, check=True)
        answer = self.hook("PostToolUse", **call, tool_response={"stdout": ""})
        if answer is None:
            return ""
        told = answer["hookSpecificOutput"]
        assert told["hookEventName"] == "PostToolUse"
        return str(told["additionalContext"])

    def rows(self, *more: str) -> list[dict[str, Any]]:
        """The checkpoints of this session, oldest first."""
        rows = self.cowfs.ok("log", "-n", "0", *more)["checkpoints"]
        mine = [row for row in rows if "hook claude" in row["command"]]
        return mine[::-1]


@pytest.fixture
def agent(shared_cowfs: Cowfs, workspace: Path, request: pytest.FixtureRequest) -> Agent:
    return Agent(shared_cowfs, workspace, request.node.name.replace("_", "-"))


def test_a_session_of_claude_code(agent: Agent) -> None:
    cowfs, top = agent.cowfs, agent.workspace
    before, there = len(agent.rows()), sorted(top.iterdir())
    assert agent.hook("SessionStart", source="startup") is None
    agent.prompt("add the tax\n\nand tests")
    told = agent.bash("echo tax > tax.py; rm readme; mv src/main.c src/cart.c")
    assert told.splitlines()[1:] == [
        "created: tax.py",
        "deleted: readme",
        "renamed: src/main.c -> src/cart.c",
    ]
    assert agent.bash("ls") == ""
    agent.prompt("and now undo that")
    agent.bash("sed -i s/tax/vat/ tax.py")
    agent.hook("Stop", last_assistant_message="")
    agent.hook("SessionEnd", reason="logout")
    rows = agent.rows()[before:]
    assert [row["kind"] for row in rows] == ["prompt", "tool", "prompt", "turn"]
    assert rows[0]["message"] == "add the tax\n\nand tests"
    first, second = rows[0]["id"], rows[2]["id"]
    cowfs.ok("restore", second)
    assert (top / "tax.py").read_text() == "tax\n"
    cowfs.ok("restore", first)
    assert sorted(top.iterdir()) == there
    assert (top / "readme").exists()
    assert (top / "src" / "main.c").exists()


def test_the_log_shows_prompts_and_folds_the_rest(agent: Agent) -> None:
    agent.prompt("first line\nsecond line")
    for number in range(4):
        agent.bash(f"echo {number} > log-{number}")
    agent.hook("Stop")
    said = agent.cowfs.says("log", "-n", "3")
    assert "[prompt] first line" in said
    assert "second line" not in said
    assert "[auto] 4 automatic" in said
    assert "before Bash" not in said
    assert "before Bash: echo 1 > log-1" in agent.cowfs.says("log", "--all")
    # What comes by itself while somebody types is not counted.
    assert agent.cowfs.ok("restore", "@~1", "--dry-run")["checkpoint"]["kind"] == "prompt"


def test_both_installations_at_once(agent: Agent) -> None:
    before = len(agent.rows())
    agent.prompts += 1
    started = [
        agent.cowfs.start(
            "hook", "claude", "UserPromptSubmit", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(3)
    ]
    for process in started:
        with process:
            process.communicate(agent.said("UserPromptSubmit", prompt="go"), timeout=_SECONDS)
    assert [row["kind"] for row in agent.rows()[before:]] == ["prompt"]


def test_a_working_directory_elsewhere(agent: Agent) -> None:
    """The agent has left the workspace; its project's directory is known all the same."""
    cowfs = agent.cowfs
    before = len(agent.rows())
    cowfs.env["CLAUDE_PROJECT_DIR"] = str(agent.workspace)
    try:
        agent.hook("UserPromptSubmit", prompt="go", cwd="/")
    finally:
        del cowfs.env["CLAUDE_PROJECT_DIR"]
    assert len(agent.rows()) == before + 1


def test_the_file_that_an_edit_names_is_no_news(agent: Agent) -> None:
    path = agent.workspace / "edited"
    call = {"tool_name": "Write", "tool_use_id": "w1", "tool_input": {"file_path": str(path)}}
    agent.hook("PreToolUse", **call)
    path.write_text("1")
    assert agent.hook("PostToolUse", **call) is None


def test_a_session_that_was_broken_off_is_told_to_the_next_one(agent: Agent) -> None:
    cowfs = agent.cowfs
    with subprocess.Popen(["sleep", "60"]) as process:
        cowfs.env["CLAUDE_PID"] = str(process.pid)
        try:
            agent.hook("SessionStart", source="startup")
            agent.prompt("long work\nof two lines")
            process.kill()
        finally:
            del cowfs.env["CLAUDE_PID"]
    following = Agent(cowfs, agent.workspace, f"{agent.session}-2")
    told = following.hook("SessionStart", source="startup")
    said = told["hookSpecificOutput"]["additionalContext"]
    assert f"`cowfs resume {agent.session}`" in said
    assert '("long work")' in said
    assert told["systemMessage"] == said
    following.prompt("something else")
    third = Agent(cowfs, agent.workspace, f"{agent.session}-3")
    assert third.hook("SessionStart", source="startup") is None


def imported(cowfs: Cowfs, said: bytes, *arguments: str) -> set[str]:
    """The modules that a command imports, without those that every Python process has."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import site; site.main();" + _SPY, *arguments],
        cwd=cowfs.cwd,
        env=cowfs.env,
        input=said,
        capture_output=True,
        check=True,
    )
    return set(done.stderr.decode().split())


@pytest.mark.parametrize("name", ["SessionStart", "UserPromptSubmit", "PreToolUse", "Stop"])
def test_a_hook_imports_nothing_heavy(agent: Agent, name: str) -> None:
    said = agent.said(name, prompt="go", tool_name="Bash", tool_input={"command": "ls"})
    found = imported(agent.cowfs, said, "hook", "claude", name)
    assert {"cowfs.hooks.run", "cowfs.agents.claude.hooks"} <= found
    heavy = {"json", "re", "socket", "importlib", "signal", "enum", "dataclasses"}
    assert not found & (_HEAVY | heavy)
    assert not {n for n in found if n.startswith(("cowfs.service", "cowfs.cli.", "cowfs.format"))}


def test_the_status_line_imports_nothing_heavy(agent: Agent) -> None:
    found = imported(agent.cowfs, b"{}", "statusline")
    assert not found & _HEAVY
    assert not {name for name in found if name.startswith(("cowfs.service", "cowfs.store"))}


def test_the_status_line(agent: Agent) -> None:
    cowfs = agent.cowfs
    cowfs.ok("checkpoint", "--label", "for-the-line")
    (agent.workspace / "line").write_text("1")
    cowfs.ok("status")

    def line(said: Any, cwd: Path) -> str:
        with cowfs.start(
            "statusline", cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            out, _ = process.communicate(json.dumps(said).encode(), timeout=_SECONDS)
        assert process.returncode == 0
        return without_age(out.decode())

    def without_age(said: str) -> str:
        return re.sub(r"\b\d+ s ago", "now", said)

    one = line({"workspace": {"current_dir": str(agent.workspace / "src")}}, Path("/"))
    assert one.startswith("cowfs: project, ")
    assert "(for-the-line)" in one
    assert one.endswith(", 1 created since\n")
    assert line([], agent.workspace) == one
    assert line({}, Path("/")) == ""
    assert without_age(cowfs.ok("statusline")["line"]) == one.rstrip("\n")


def test_the_status_line_of_what_is_not_mounted(cowfs: Cowfs, mounted: Path) -> None:
    cowfs.cwd = cowfs.top
    cowfs.ok("unmount", mounted)
    cowfs.cwd = mounted
    assert cowfs.says("statusline") == "cowfs: project is not mounted\n"


def test_hooks_of_a_workspace_whose_daemon_was_killed(cowfs: Cowfs, mounted: Path) -> None:
    agent = Agent(cowfs, mounted, "s")
    ((_, store),) = cowfs.mounts()
    cowfs.cwd = cowfs.top
    cowfs.kill(store)
    agent.prompts += 1
    said = agent.hook("UserPromptSubmit", prompt="go")["systemMessage"]
    assert "does not answer" in said
    assert agent.hook("UserPromptSubmit", prompt="go") is None
    assert agent.hook("Stop") is None
    assert cowfs.says("statusline", cwd=cowfs.top) == ""
    cowfs.ok("mount", mounted)


# -- cowfs hooks ----------------------------------------------------------------------------------


@pytest.fixture
def quickly(cowfs: Cowfs) -> Cowfs:
    """Commands without a process of their own, whose home is a scratch directory."""
    cowfs.in_process = True
    cowfs.env["CLAUDE_CONFIG_DIR"] = str(cowfs.top / "claude")
    cowfs.env["CODEX_HOME"] = str(cowfs.top / "codex")
    return cowfs


def test_install_and_uninstall(quickly: Cowfs) -> None:
    file = quickly.top / "claude" / "settings.json"
    shown = quickly.says("hooks", "install", "claude", "--dry-run")
    assert f"+++ {file}" in shown
    assert not file.exists()
    assert "changed" in quickly.says("hooks", "install", "claude", "--yes")
    assert "SessionStart" in json.loads(file.read_text())["hooks"]
    assert "already" in quickly.says("hooks", "install", "claude", "--yes")
    assert "removed" in quickly.says("hooks", "uninstall", "claude", "--yes")
    assert not file.exists()
    assert "has none" in quickly.says("hooks", "uninstall", "claude")


def test_installing_for_programs(quickly: Cowfs) -> None:
    done = quickly.ok("hooks", "install", "claude", "--yes", "--command", "/opt/bin/cowfs")
    (file,) = done["files"]
    assert (file["changed"], done["written"], file["in_project"]) == (True, True, False)
    text = Path(file["path"]).read_text()
    assert '"/opt/bin/cowfs"' in text
    again = quickly.ok("hooks", "install", "claude", "--command", "/opt/bin/cowfs")
    assert again["written"] is False


def test_nobody_can_be_asked(quickly: Cowfs) -> None:
    error = quickly.fails("hooks", "install", "claude")
    assert error["code"] == "COWFS_USAGE"
    assert "--yes" in error["message"]
    assert not (quickly.top / "claude").exists()


@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_somebody_is_asked(cowfs: Cowfs, answer: str) -> None:
    file = cowfs.top / "claude" / "settings.json"
    cowfs.env["CLAUDE_CONFIG_DIR"] = str(file.parent)
    with terminal(cowfs, "hooks", "install", "claude") as (user, process):
        user.read_until(b"write that?")
        assert f"+++ {file}" in user.seen.decode()
        assert not file.exists()
        user.type(f"{answer}\n".encode())
        said = user.rest()
    assert process.returncode == 0
    assert file.exists() == (answer == "y")
    assert ("nothing was written" in said) == (answer != "y")


def test_a_project_file_is_git_s_business(quickly: Cowfs, project: Path) -> None:
    (project / ".git").mkdir()
    said = quickly.says("hooks", "install", "claude", "--project", "--yes", cwd=project / "src")
    assert "git" in said
    file = project / ".claude" / "settings.json"
    assert '"command": "cowfs"' in file.read_text()


def test_settings_that_make_no_sense(quickly: Cowfs) -> None:
    (quickly.top / "claude").mkdir()
    (quickly.top / "claude" / "settings.json").write_text("{nonsense")
    error = quickly.fails("hooks", "install", "claude", "--yes")
    assert error["code"] == "COWFS_AGENT_SETTINGS"
    rows = quickly.ok("hooks", "status", "claude")["agents"]
    assert [row["state"] for row in rows] == ["unreadable", "not installed"]


def test_status_of_hooks(quickly: Cowfs) -> None:
    def state() -> list[str]:
        return [row["state"] for row in quickly.ok("hooks", "status", "claude")["agents"]]

    assert state() == ["not installed", "not installed"]
    quickly.ok("hooks", "install", "claude", "--yes", "--command", "/some/where/cowfs")
    assert state() == ["other version", "not installed"]
    quickly.ok("hooks", "install", "claude", "--yes")
    assert state() == ["installed", "not installed"]
    assert "claude" in quickly.says("hooks", "status")


def test_status_of_hooks_in_the_home(quickly: Cowfs) -> None:
    """There the user's settings and those of the project are one file, which is told once."""
    quickly.env["CLAUDE_CONFIG_DIR"] = str(quickly.home / ".claude")
    quickly.ok("hooks", "install", "claude", "--yes")
    (row,) = quickly.ok("hooks", "status", "claude", cwd=quickly.home)["agents"]
    assert (row["scope"], row["state"]) == ("user", "installed")


def test_an_agent_that_has_no_hooks(quickly: Cowfs) -> None:
    assert quickly.fails("hooks", "install", "nobody")["code"] == "COWFS_USAGE"
    assert quickly.fails("hooks", "install")["code"] == "COWFS_USAGE"
