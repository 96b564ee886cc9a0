"""What the tests of Claude Code share: prompts, calls of its tools, and what its model was sent."""

from __future__ import annotations

import json
import os
import select
from pathlib import Path
from typing import Any

from tests.clients.agents import SECONDS
from tests.clients.protocols import Call
from tests.clients.stub import Request, call

MAKE = "make-the-things"
HELP = "ask-a-helper"
TASK = "helper-task"
BREAK = "break-the-things"
LAST = "the-last-thing"


def helper(prompt: str, *, background: bool = False) -> Call:
    return call(
        "Agent",
        description="a job",
        prompt=f"{prompt} please",
        subagent_type="general-purpose",
        run_in_background=background,
    )


def bash(command: str) -> Call:
    return call("Bash", command=command, description="work")


def before_the_prompt(request: Request) -> list[Any]:
    """All messages that the model was sent before the prompt that it had to answer, as they are."""
    messages: list[Any] = list(request.body["messages"])
    while request.rule not in json.dumps(messages.pop()):
        pass
    return messages


def calls(request: Request) -> dict[str, str]:
    """The tools that the model has called, and the id of the last call of each."""
    return {
        block["name"]: block["id"]
        for message in request.body["messages"]
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == "tool_use"
    }


def wait_for(fifo: Path) -> None:
    """Until something was written into a named pipe."""
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert select.select([fd], [], [], SECONDS)[0], "nothing was written in time"
    finally:
        os.close(fd)
