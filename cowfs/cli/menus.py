"""Questions on a terminal: to which prompt, and with or without the conversation.

They go to stderr, as all that is not the result.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence

import click

from cowfs.cli import output
from cowfs.cli.continuing import first_line
from cowfs.service.sessions.prompts import Prompt

CODE, CONVERSATION, BOTH = "code", "conversation", "both"
_WHAT = (
    (BOTH, "the files and the conversation"),
    (CONVERSATION, "the conversation"),
    (CODE, "the files"),
    ("", "never mind"),
)
_WIDTH = 100
_LEAST = 20


def ask_what() -> str:
    """What to restore: `CODE`, `CONVERSATION`, `BOTH`, or "" for nothing."""
    for number, (_, text) in enumerate(_WHAT, start=1):
        _say(f"  {number}  {text}")
    answer: int = click.prompt(
        "restore", type=click.IntRange(1, len(_WHAT)), default=len(_WHAT), err=True
    )
    return _WHAT[answer - 1][0]


def ask_prompt(found: Sequence[Prompt], heading: str) -> Prompt | None:
    """To before which prompt to go back; None for none of them."""
    now = time.time_ns()
    rows = [
        (str(number), output.age(prompt.point.time, now), prompt.numbers, prompt.text)
        for number, prompt in enumerate(found, start=1)
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    columns = min(shutil.get_terminal_size().columns, _WIDTH)
    room = max(columns - sum(widths) - 8, _LEAST)
    _say(heading)
    for number, age, numbers, text in rows:
        cells = (number.rjust(widths[0]), age.ljust(widths[1]), numbers.ljust(widths[2]))
        _say("  ".join(("", *cells, first_line(text, room))))
    answer: int = click.prompt(
        "go back to before which one (0: none)",
        type=click.IntRange(0, len(found)),
        default=0,
        err=True,
    )
    return found[answer - 1] if answer else None


def ask_one(rows: Sequence[str], question: str) -> int | None:
    """The place of one of some rows; None for none of them."""
    for number, row in enumerate(rows, start=1):
        _say(f"  {number}  {row}")
    answer: int = click.prompt(
        f"{question} (0: none)", type=click.IntRange(0, len(rows)), default=0, err=True
    )
    return answer - 1 if answer else None


def _say(line: str) -> None:
    click.echo(output.printable(line), err=True)
