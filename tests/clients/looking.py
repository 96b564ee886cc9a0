"""Looking at what cowfs has kept of an agent's work, and going on with a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.clients.agents import Agent
from tests.clients.protocols import Said

GO_ON = "go-on-from-there"
"""What a copy is asked; scripts answer it with `WENT_ON`."""
WENT_ON = "I went on."


def contents(top: Path) -> dict[str, str]:
    """The files of the workspace by path, without the settings of agents, which are in hidden
    directories."""
    return {
        name: path.read_text()
        for path in sorted(top.rglob("*"))
        if path.is_file() and not (name := str(path.relative_to(top))).startswith(".")
    }


def prompts(agent: Agent) -> dict[str, str]:
    """What was asked to the id of the checkpoint before it, oldest first."""
    rows = agent.cowfs.ok("log", "-n", "0", "--kind", "prompt")["checkpoints"]
    found = {row["message"]: row["id"] for row in reversed(rows)}
    assert len(found) == len(rows), "a prompt has two checkpoints"
    return found


def sessions(agent: Agent) -> list[dict[str, Any]]:
    """What `cowfs sessions` lists."""
    rows: list[dict[str, Any]] = agent.cowfs.ok("sessions")["sessions"]
    return rows


def the_session(agent: Agent) -> dict[str, Any]:
    """The only one that there is."""
    (row,) = sessions(agent)
    return row


def continued(agent: Agent, session: str, way: dict[str, Any]) -> list[Said]:
    """Go on with a session in the way that cowfs tells (cwd, before, command); the conversation
    that the model was sent with the next prompt, without that prompt."""
    assert Path(way["cwd"]) == agent.top
    for words in way["before"]:
        assert words[0] == agent.name
        agent.execute(words[1:])
    assert way["command"] == agent.resume_command(session)
    before = len(agent.stub.requests)
    assert WENT_ON in agent.run(f"{GO_ON} now", session=session)
    first = next(request for request in agent.stub.requests[before:] if request.rule == GO_ON)
    *history, last = agent.stub.history(first)
    assert last == ("user", GO_ON)
    return history


def copied(agent: Agent, copy: dict[str, Any]) -> list[Said]:
    """The same for a copy that a restore has made."""
    return continued(agent, copy["session"], copy)
