"""How a conversation goes on, as text."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from cowfs.cli import output


def command_line(cwd: str, before: Sequence[Sequence[str]], command: Sequence[str]) -> str:
    """What to type, for a shell; "" when nobody knows."""
    if not command:
        return ""
    steps = [["cd", cwd], *before, command]
    return output.printable(" && ".join(shlex.join(step) for step in steps))


def lines(told: dict[str, Any]) -> list[str]:
    """The answer of the daemon (`Continuation`): the command, and the prompt to type again."""
    found = []
    if command := command_line(told["cwd"], told["before"], told["command"]):
        found += ["continue the conversation with", f"    {command}"]
    if told["prompt"]:
        found += ["the prompt was", *quoted(told["prompt"])]
    if not told["complete"]:
        found.append("not all of it had been written when that checkpoint was made")
    return found + [output.printable(note) for note in told["notes"]]


def quoted(text: str) -> list[str]:
    """Text of somebody else's, as lines of their own."""
    return [f"    {output.printable(line)}" for line in text.splitlines()]


def first_line(text: str, width: int) -> str:
    """The beginning of a text, in at most so many characters."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = output.printable(first)
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"
