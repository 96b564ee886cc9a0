"""Claude Code goes on whatever becomes of cowfs."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

from cowfs.client.places import is_stopped
from tests.clients.conftest import StartClaude
from tests.clients.looking import contents
from tests.clients.scenes import HELP, MAKE, bash


def test_without_the_command(claude: StartClaude) -> None:
    agent = claude({MAKE: [bash("echo 1 > one"), "One is made."]})
    (agent.place.programs / "cowfs").unlink()
    assert agent.run(f"{MAKE} now") == "One is made."
    assert contents(agent.top)["one"] == "1\n"


def test_not_mounted(claude: StartClaude) -> None:
    agent = claude({MAKE: [bash("echo 1 > one"), "One is made."], HELP: ["I helped."]})
    agent.cowfs.ok("unmount", agent.top, cwd=agent.cowfs.top)
    session = str(uuid.uuid4())
    assert agent.run(f"{MAKE} now", "--session-id", session) == "One is made."
    assert contents(agent.top)["one"] == "1\n"
    assert agent.run(f"{HELP} now", session=session) == "I helped."
    # The user is told, once in a session; the log says when.
    log = Path(agent.cowfs.env["XDG_DATA_HOME"], "cowfs", "hooks.log").read_text()
    (line,) = log.splitlines()
    assert "is not mounted" in line
    assert session in line


def test_a_stopped_daemon(claude: StartClaude) -> None:
    """It is stopped while a command runs, until the model hears of the command's end."""
    heard = []

    def go_on() -> str:
        heard.append(is_stopped(pid))
        os.kill(pid, signal.SIGCONT)
        return "One is made."

    agent = claude({MAKE: [bash("echo 1 > one; kill -STOP $(cat ../pid)"), go_on]})
    ((_, store),) = agent.cowfs.mounts()
    pid = agent.cowfs.pid(store)
    (agent.cowfs.top / "pid").write_text(str(pid))
    try:
        assert agent.run(f"{MAKE} now") == "One is made."
    finally:
        os.kill(pid, signal.SIGCONT)
    assert heard == [True]
    assert contents(agent.top)["one"] == "1\n"
