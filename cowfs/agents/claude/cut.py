"""Where a Claude Code conversation can be cut so that the program goes on with it.

Always in the file's order. The ancestors of an entry are not enough: the results of calls that were
made at once hang from one call each, and all but one would be lost.

Threading: pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cowfs.agents.base import START, NotCopyableError
from cowfs.agents.claude.transcript import ASSISTANT, ATTACHMENT, Line


def cut(entries: Sequence[Line], leaf: str) -> Sequence[Line]:
    """The first entries, as many as a copy can have; none after `leaf`, if that is not "".
    Raises NotCopyableError."""
    state, length = _State(entries), 0
    end = _end(entries, leaf) if leaf else len(entries)
    for number, entry in enumerate(entries[:end], 1):
        state.add(entry)
        if state.may_end(number):
            length = number
    if not length:
        raise NotCopyableError("nothing had been said in it yet")
    return entries[:length]


def _end(entries: Sequence[Line], leaf: str) -> int:
    if leaf == START:
        return 0
    end = next((n for n, entry in enumerate(entries, 1) if entry.uuid == leaf), 0)
    if not end:
        raise NotCopyableError(f"it has no entry {leaf}")
    while end < len(entries) and _is_output(entries[end]):
        end += 1
    return end


def _is_output(entry: Line) -> bool:
    """Whether it belongs to the result before it: an answer in the form that was asked for."""
    attachment = entry.value.get("attachment")
    kind = attachment.get("type") if isinstance(attachment, dict) else None
    return entry.kind == ATTACHMENT and kind == "structured_output"


@dataclass(slots=True)
class _State:
    """What of the entries so far waits for one that follows."""

    entries: Sequence[Line]
    _places: dict[str, int] = field(init=False)
    _answered: set[str] = field(init=False)
    _results: set[str] = field(default_factory=set)
    _open: set[str] = field(default_factory=set)
    _message: str = ""
    _needed: int = 0
    _begun: bool = False
    _bare_boundary: bool = False
    _thought: bool = False

    def __post_init__(self) -> None:
        self._places = {entry.uuid: n for n, entry in enumerate(self.entries, 1)}
        self._answered = {call for entry in self.entries for call in entry.results}

    def add(self, entry: Line) -> None:
        # Old versions wrote lines in another order than that of the tree.
        self._needed = max(self._needed, self._places.get(entry.parent, 0))
        if entry.begins_turn or (entry.kind == ASSISTANT and entry.message != self._message):
            # The program was killed in a call and went on later: nobody will answer that.
            self._open &= self._answered
        self._results.update(entry.results)
        self._open.update(entry.calls)
        self._open -= self._results
        if entry.is_boundary:
            self._bare_boundary = True
        if entry.said:
            self._bare_boundary = False
            self._thought = entry.is_thought
            self._begun = self._begun or not entry.is_meta
        if entry.kind == ASSISTANT:
            self._message = entry.message

    def may_end(self, length: int) -> bool:
        """No call without its result; no boundary without the summary behind it, which would cut
        all before it off; no thought at the end of an answer, which the model's server refuses."""
        waiting = self._open or self._bare_boundary or self._thought
        return self._begun and not waiting and length >= self._needed
