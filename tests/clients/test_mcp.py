"""`cowfs mcp`, started and used by Claude Code and by Gemini CLI."""

from __future__ import annotations

import json
from pathlib import Path

from tests.clients.agents import Claude, Gemini
from tests.clients.conftest import at_work
from tests.clients.looking import the_session
from tests.clients.stub import Script, call

ASK = "use-the-tools"
BACK = "take-it-back"


class ClaudeWithTools(Claude):
    """With the server, whose tools it may use."""

    tools = ",".join(
        [Claude.tools, *(f"mcp__cowfs__{name}" for name in ("checkpoint", "diff", "restore"))]
    )


def server(*options: str) -> list[str]:
    """Options that let Claude Code start the server with options."""
    config = {"mcpServers": {"cowfs": {"command": "cowfs", "args": ["mcp", *options]}}}
    return ["--strict-mcp-config", "--mcp-config", json.dumps(config)]


def test_claude_makes_a_checkpoint_looks_and_goes_back(tmp_path: Path) -> None:
    script: Script = {
        ASK: [
            call("mcp__cowfs__checkpoint", message="before the risk", label="safe"),
            call("Bash", command="rm readme; echo new > new", description="work"),
            call("mcp__cowfs__diff", a="safe"),
            call("mcp__cowfs__restore", checkpoint="safe"),
            "I did what I could.",
        ],
        BACK: [call("mcp__cowfs__restore", checkpoint="safe"), "It is back."],
    }
    with at_work(ClaudeWithTools, tmp_path, script) as claude:
        assert claude.run(f"{ASK} please", *server()) == "I did what I could."
        last = claude.stub.last(ASK)
        assert "(safe) before the risk" in last
        assert "A  new\nD  readme" in last
        assert "No such tool available: mcp__cowfs__restore" in last
        assert (claude.top / "new").read_text() == "new\n"
        kept = claude.cowfs.ok("log", "--kind", "manual")["checkpoints"][0]
        session = the_session(claude)["id"]
        assert (kept["label"], kept["session"]) == ("safe", session)

        assert claude.run(f"{BACK} please", *server("--allow-restore")) == "It is back."
        assert (claude.top / "readme").read_text() == "one\ntwo\n"
        assert not (claude.top / "new").exists()
        assert "restored " + kept["id"][:8] in claude.stub.last(BACK)


def test_gemini_is_told_of_it_by_its_own_command(tmp_path: Path) -> None:
    step = call("mcp_cowfs_checkpoint", message="by a tool", label="safe")
    with at_work(Gemini, tmp_path, {ASK: [step, "It is kept."]}) as gemini:
        gemini.execute(["mcp", "add", "cowfs", "cowfs", "mcp"])
        assert "It is kept." in gemini.run(f"{ASK} please")
        last = gemini.stub.last(ASK)
        assert "(safe) by a tool" in last
        assert "cowfs records every change to the files of this workspace" in last
        (kept,) = gemini.cowfs.ok("log", "--kind", "manual")["checkpoints"]
        assert (kept["label"], kept["session"]) == ("safe", the_session(gemini)["id"])
