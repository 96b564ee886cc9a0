"""Where a conversation may be cut so that an agent can go on with the copy.

An entry is a whole line, and its name is the number of that line, as text: agents that write lines
only add to them, so it never changes, and not all of them give their lines names.

Threading: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cowfs.agents.base import START, NotCopyableError
from cowfs.agents.lenient import Line


def entry(number: int) -> str:
    """The name of a line, START for what is before the first."""
    return str(number) if number > 0 else START


def up_to(lines: Sequence[Line], leaf: str) -> Sequence[Line]:
    """The lines up to and with `leaf`; all of them for "". Raises NotCopyableError."""
    if not leaf:
        return lines
    if leaf == START:
        raise NotCopyableError("there is nothing before its first prompt: start a new one")
    if not (leaf.isascii() and leaf.isdecimal() and 0 < int(leaf) <= len(lines)):
        raise NotCopyableError(f"the conversation has no line {leaf}")
    return lines[: int(leaf)]


def last_cut(
    lines: Sequence[Line], cuts: Iterable[int], says: Callable[[Line], bool]
) -> tuple[Sequence[Line], tuple[str, ...]]:
    """(the lines up to the last of `cuts`, notes for `Copy`). cuts: numbers of lines after which
    nothing is open. says: whether a line has something that the model or the user has said.
    Raises NotCopyableError when there is no cut."""
    number = max(cuts, default=0)
    if not number:
        raise NotCopyableError(NO_ANSWER)
    return lines[:number], (LEFT_OUT,) if any(map(says, lines[number:])) else ()


NO_ANSWER = "there is no answer in it yet: nothing to go on from"
LEFT_OUT = "what came after the last finished step of the agent is left out of the copy"
