"""An agent at work in a mounted workspace, as its hooks tell of it: Claude Code, without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from cowfs.agents.claude.places import slug
from cowfs.client.rpc import Client
from tests.cli.command import Cowfs


class Agent:
    """One session. pid: of its process, 0 when nobody said. first, second: ids of checkpoints, for
    tests to keep."""

    first = second = ""

    def __init__(self, cowfs: Cowfs, project: Path, *, pid: int = 0) -> None:
        self.cowfs = cowfs
        self.project = project
        self.pid = pid
        self.session = str(uuid.uuid4())
        above = cowfs.home / ".claude" / "projects" / slug(str(project.resolve()))
        above.mkdir(parents=True, exist_ok=True)
        self.transcript = above / f"{self.session}.jsonl"
        self._before = set(above.iterdir())
        self._last: str | None = None
        self.tell("session-start")

    def tell(self, event: str, **fields: Any) -> dict[str, Any]:
        """An event, as a hook tells the daemon of it."""
        [(_, store)] = self.cowfs.mounts()
        params = {
            "agent": "claude",
            "session": self.session,
            "event": event,
            "cwd": str(self.project),
            "transcript": str(self.transcript),
            "pid": self.pid,
            **fields,
        }
        with Client(str(store), timeout=60) as client:
            answer: dict[str, Any] = client.call("session.event", params)
        return answer

    def prompt(self, text: str, **fields: Any) -> str:
        """The user asks for something: id of the checkpoint before it. The line is written after
        the hook, as the real one is."""
        made = self.tell("prompt", prompt=text, prompt_id=str(uuid.uuid4()), **fields)
        self.say("user", text)
        return str(made["checkpoint"]["id"])

    def answer(self, text: str) -> None:
        self.say("assistant", text)

    def say(self, role: str, text: str) -> None:
        """One more line of the conversation."""
        message: dict[str, Any] = {"role": role, "content": text}
        if role == "assistant":
            message |= {
                "id": f"msg_{uuid.uuid4().hex}",
                "type": "message",
                "model": "none",
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        name = str(uuid.uuid4())
        line = {
            "type": role,
            "uuid": name,
            "parentUuid": self._last,
            "isSidechain": False,
            "userType": "external",
            "cwd": str(self.project),
            "sessionId": self.session,
            "version": "2.1.332",
            "gitBranch": "",
            "timestamp": "2026-11-30T10:00:00.000Z",
            "message": message,
        }
        with self.transcript.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._last = name

    def copies(self) -> list[Path]:
        """The transcripts that came beside its own."""
        found = set(self.transcript.parent.glob("*.jsonl"))
        return sorted(found - self._before - {self.transcript})


def texts(transcript: Path) -> list[str]:
    """What is said in a transcript."""
    found = []
    for line in transcript.read_text().splitlines():
        row = json.loads(line)
        if row.get("type") in ("user", "assistant"):
            content = row["message"]["content"]
            found.append(content if isinstance(content, str) else content[0]["text"])
    return found


def ended_pid() -> int:
    """The pid of a process that has ended, and that nobody waited for any more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def pretend(directory: Path, name: str) -> Path:
    """A program with the name of an agent: it writes down how it was started."""
    directory.mkdir(exist_ok=True)
    program, told = directory / name, directory / f"{name}.told"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        f"with open({str(told)!r}, 'w') as file:\n"
        "    json.dump([sys.argv[1:], os.getcwd(), dict(os.environ)], file)\n"
        "print('the agent runs')\n"
        "sys.exit(5)\n"
    )
    program.chmod(0o755)
    return told


def path_with(directory: Path) -> str:
    """A PATH that has a directory before all others."""
    return f"{directory}:{os.environ['PATH']}"
