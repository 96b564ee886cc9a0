"""Agents other than Claude Code, as their hooks tell of them, and programs that nobody knows."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agents.codex.writing import CODEX
from tests.agents.gemini.writing import GEMINI
from tests.agents.generic.writing import GENERIC
from tests.agents.opencode.writing import OPENCODE
from tests.agents.talks import Answer, Calls, Said, Writing
from tests.cli.command import Cowfs

FIRST = Said("make the cart", (Calls((1, 0)), Answer("it is made")))
SECOND = Said("add tax", (Answer("tax is added"),))
PAGE = Path(__file__).parents[2] / "docs" / "agents.md"

Words = Callable[[str, str], tuple[str, dict[str, Any]]]
"""What an agent calls `prompt` and `turn-end`, and what it says then, given those and the text."""


def like_claude(event: str, text: str) -> tuple[str, dict[str, Any]]:
    name = {"prompt": "UserPromptSubmit", "turn-end": "Stop"}[event]
    more = {"prompt": text} if event == "prompt" else {"last_assistant_message": text}
    return name, {"turn_id": text, "hook_event_name": name, **more}


def like_gemini(event: str, text: str) -> tuple[str, dict[str, Any]]:
    name = {"prompt": "BeforeAgent", "turn-end": "AfterAgent"}[event]
    return name, {"prompt": text, "prompt_response": text, "timestamp": text}


def plainly(event: str, text: str) -> tuple[str, dict[str, Any]]:
    return event, {"prompt": text, "prompt_id": text} if event == "prompt" else {}


def hook(cowfs: Cowfs, *words: str, said: dict[str, Any]) -> str:
    """What it answers."""
    with cowfs.start("hook", *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(json.dumps(said).encode(), timeout=60)
    assert process.returncode == 0
    return os.fsdecode(out)


@pytest.mark.parametrize(
    ("name", "writing", "words"),
    [
        ("codex", CODEX, like_claude),
        ("gemini", GEMINI, like_gemini),
        ("opencode", OPENCODE, plainly),
        ("tally", GENERIC, plainly),
    ],
    ids=["codex", "gemini", "opencode", "unknown"],
)
def test_two_prompts(
    shared_cowfs: Cowfs, workspace: Path, name: str, writing: Writing, words: Words
) -> None:
    """A checkpoint before each, with the conversation so far; and back, with a copy of it."""
    session = f"{name}-{writing.session}"
    transcript = shared_cowfs.home / name / os.path.basename(writing.transcript)
    transcript.parent.mkdir()
    transcript.touch()
    file = workspace / name

    def tell(event: str, text: str) -> None:
        event, more = words(event, text)
        who = {"session" if words is plainly else "session_id": session}
        where = "transcript" if words is plainly else "transcript_path"
        said = {**who, where: str(transcript), "cwd": str(workspace), **more}
        assert hook(shared_cowfs, name, event, said=said).strip() == ""

    for at, turn in enumerate((FIRST, SECOND)):
        tell("prompt", turn.prompt)
        file.write_text(f"{at}\n")
        transcript.write_bytes(writing.write((FIRST, SECOND)[: at + 1]))
        tell("turn-end", turn.steps[-1].text)  # type: ignore[union-attr]

    [row] = [row for row in shared_cowfs.ok("sessions")["sessions"] if row["id"] == session]
    assert (row["agent"], row["state"], row["prompt"]) == (name, "active", "add tax")
    points = shared_cowfs.ok("session", "show", session)["checkpoints"]
    [point] = [p["id"] for p in points if p["message"] == "add tax"]
    told = shared_cowfs.ok("restore", point, "--both", name)["conversation"]
    assert file.read_text() == "0\n"
    [copy] = map(Path, told["files"])
    assert writing.copied(copy.read_bytes()) == writing.heard(writing.write((FIRST,)))
    assert transcript.read_bytes() == writing.write((FIRST, SECOND))


def test_the_commands_of_the_documentation(shared_cowfs: Cowfs, workspace: Path) -> None:
    section = (
        PAGE.read_text(encoding="utf-8").split("\n## Any other program\n")[1].split("\n## ")[0]
    )
    commands = re.findall(r"^    (.*cowfs .*)$", section, re.MULTILINE)
    assert [re.findall(r"cowfs (\w+)", line) for line in commands] == [
        ["session"],
        ["hook"],
        ["hook"],
        ["session"],
    ]
    program = shared_cowfs.home / "cowfs"
    program.write_text("#!/bin/sh\nexec " + shell_words(shared_cowfs.argv()) + ' "$@"\n')
    program.chmod(0o755)
    talk = shared_cowfs.home / ".tally" / "talk.jsonl"
    talk.parent.mkdir()
    talk.write_bytes(GENERIC.write((FIRST,)))
    environment = {**shared_cowfs.env, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    for line in commands:
        subprocess.run(["sh", "-c", line], cwd=workspace, env=environment, check=True, timeout=60)
    shown = shared_cowfs.ok("session", "show", "talk")
    assert (shown["session"]["agent"], shown["session"]["state"]) == ("tally", "ended")
    [point] = [p["id"] for p in shown["checkpoints"] if p["message"] == "add them up"]
    told = shared_cowfs.ok("restore", point, "--conversation")["conversation"]
    [copy] = map(Path, told["files"])
    assert copy.read_bytes() == talk.read_bytes()
    assert any(str(copy) in note for note in told["notes"])


def shell_words(words: list[str]) -> str:
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
