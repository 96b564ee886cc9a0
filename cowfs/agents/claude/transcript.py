"""The lines of a Claude Code transcript.

A transcript is a file of JSON objects, one a line, that only grows. *Entries* have a `uuid` and a
`parentUuid` and form a tree: what somebody said, what a tool answered, what the program added. The
tree has branches where `/rewind` went back, and where several calls were answered at once. Other
lines say something of the session, such as its title.

The format is internal to the program and changes with every version: lines are read leniently, and
written by putting other members in place of some and leaving the text of the rest as it is.

Threading: pure functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cowfs.agents.lenient import mapping, sequence, text, texts

USER, ASSISTANT, SYSTEM, ATTACHMENT = "user", "assistant", "system", "attachment"
_THOUGHTS = ("thinking", "redacted_thinking")
_LARGE = ("toolUseResult", "snapshot")
_NO_PROMPTS = (
    "<task-notification>",
    "<teammate-message",
    "<local-command-",
    "<bash-input>",
    "<bash-stdout>",
    "<bash-stderr>",
    "[Request interrupted by user",
)
"""How texts begin that the program puts in the place of a prompt."""
_OUTPUT = ("<local-command-stdout>", "<local-command-stderr>")
_ADDED = ("<system-reminder>", "<ide_", "<local-command-caveat>")
_COMMAND = re.compile(r"<command-(name|args)>(.*?)</command-\1>", re.DOTALL)
_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object. key, text: as they are written."""

    key: str
    text: str
    name: str
    value: Any


def members(line: bytes) -> list[Member]:
    """The members of the object that a line holds, in order. Raises ValueError or RecursionError
    when it holds none."""
    written = line.decode("utf-8", "surrogateescape")
    at = _expect(written, _skip(written, 0), "{")
    found: list[Member] = []
    while written[at : at + 1] != "}":
        if found:
            at = _expect(written, at, ",")
        name, end = _DECODER.raw_decode(written, at)
        if not isinstance(name, str):
            raise ValueError("the name of a member is no string")
        start = _expect(written, _skip(written, end), ":")
        value, stop = _DECODER.raw_decode(written, start)
        found.append(Member(written[at:end], written[start:stop], name, value))
        at = _skip(written, stop)
    if _skip(written, at + 1) != len(written):
        raise ValueError("something follows the object")
    return found


def _skip(written: str, at: int) -> int:
    blanks = _BLANKS.match(written, at)
    return blanks.end() if blanks else at


def _expect(written: str, at: int, sign: str) -> int:
    if written[at : at + 1] != sign:
        raise ValueError(f"there is no {sign} at {at}")
    return _skip(written, at + 1)


def joined(found: Iterable[Member]) -> bytes:
    """A line, without its newline."""
    text = ",".join(f"{member.key}:{member.text}" for member in found)
    return f"{{{text}}}".encode("utf-8", "surrogateescape")


def member(name: str, value: Any) -> Member:
    """A new member."""
    return Member(json.dumps(name), json.dumps(value, separators=(",", ":")), name, value)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that holds an object. value: its members but the largest, by name."""

    raw: bytes
    value: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return text(self.value.get("type"))

    @property
    def uuid(self) -> str:
        """The name of an entry; "" for a line that is none."""
        return text(self.value.get("uuid")) if "parentUuid" in self.value else ""

    @property
    def parent(self) -> str:
        return text(self.value.get("parentUuid"))

    @property
    def leaf(self) -> str:
        """The entry that a line which is none is about."""
        return text(self.value.get("leafUuid"))

    @property
    def aside(self) -> bool:
        """Whether it is of a sub-agent."""
        return self.value.get("isSidechain") is True

    @property
    def said(self) -> bool:
        """Whether it is part of what the model and its user said."""
        return self.kind in (USER, ASSISTANT)

    @property
    def is_boundary(self) -> bool:
        """Whether the conversation was made shorter here: what follows does not go on from what
        the file has before."""
        return self.kind == SYSTEM and self.value.get("subtype") == "compact_boundary"

    @property
    def before_boundary(self) -> str:
        """The entry that a boundary follows in time."""
        return text(self.value.get("logicalParentUuid")) if self.is_boundary else ""

    @property
    def is_meta(self) -> bool:
        """Whether the program said it in the user's name."""
        return self.value.get("isMeta") is True or self.value.get("isCompactSummary") is True

    @property
    def content(self) -> Any:
        return mapping(self.value.get("message")).get("content")

    @property
    def message(self) -> str:
        """Of the lines that one answer of the model was split into, the same."""
        return text(mapping(self.value.get("message")).get("id")) or self.uuid

    @property
    def calls(self) -> list[str]:
        """Ids of the tool calls in it."""
        return list(self._ids(ASSISTANT, "tool_use", "id"))

    @property
    def results(self) -> list[str]:
        """Ids of the tool calls that it answers."""
        return list(self._ids(USER, "tool_result", "tool_use_id"))

    def _ids(self, kind: str, block: str, name: str) -> Iterator[str]:
        for part in sequence(self.content) if self.kind == kind else ():
            if mapping(part).get("type") == block:
                yield text(mapping(part).get(name))

    @property
    def is_thought(self) -> bool:
        """Whether it is of the model and has nothing that may stand at an answer's end."""
        kinds = {mapping(part).get("type") for part in sequence(self.content)}
        return self.kind == ASSISTANT and bool(kinds) and kinds <= {*_THOUGHTS}

    @property
    def prompt(self) -> str:
        """What the user asked in it, "" if nothing."""
        if self.kind != USER or self.aside or self.is_meta or self.results:
            return ""
        if isinstance(self.content, str):
            asked = text(self.content)
        else:
            asked = "\n".join(_asked(part) for part in sequence(self.content)).strip()
        if asked.lstrip().startswith(_NO_PROMPTS):
            return ""
        command = dict(_COMMAND.findall(asked))
        if asked.lstrip().startswith("<command-") and "name" in command:
            return f"{command['name']} {command.get('args', '')}".strip()
        return asked

    @property
    def is_output(self) -> bool:
        """Whether it is what a command of the program itself, such as `/compact`, has printed; the
        command, which was no prompt, is the entry before."""
        content = self.content
        return isinstance(content, str) and content.lstrip().startswith(_OUTPUT)

    @property
    def answer(self) -> str:
        """The text of the model in it, "" if there is none."""
        return texts(self.content) if self.kind == ASSISTANT else ""


def _asked(part: object) -> str:
    found = mapping(part)
    if found.get("type") == "image":
        return "[image]"
    said = text(found.get("text"))
    return "" if said.lstrip().startswith(_ADDED) else said


def lines(data: bytes) -> tuple[list[Line], int]:
    """(the lines of a file that hold an object, how many others there are). What follows the last
    newline is not finished, and none."""
    found, bad = [], 0
    for raw in data.split(b"\n")[:-1]:
        try:
            value = {item.name: item.value for item in members(raw)}
        except (ValueError, RecursionError):
            bad += bool(raw.strip())
            continue
        for name in _LARGE:
            value.pop(name, None)
        found.append(Line(raw, value))
    return found, bad


def main_entries(found: Iterable[Line]) -> list[Line]:
    """The entries of the conversation itself, in the file's order."""
    return [line for line in found if line.uuid and not line.aside]


def parents(entries: Sequence[Line]) -> dict[str, Line | None]:
    """What each entry follows, by uuid; None for the first ones. Where that is not in the file, the
    one before it in the file's order: more is better than less."""
    by_name = {entry.uuid: entry for entry in entries}
    found: dict[str, Line | None] = {}
    before: Line | None = None
    for entry in entries:
        name = entry.parent
        found[entry.uuid] = by_name.get(name, before) if name else None
        before = entry
    return found


def live(entries: Sequence[Line]) -> list[Line]:
    """The line of entries that leads to the last one, from the first: not what is on branches that
    `/rewind` left, but what is on the other side of a boundary."""
    above = parents(entries)
    by_name = {entry.uuid: entry for entry in entries}
    found: dict[str, Line] = {}
    at = entries[-1] if entries else None
    while at is not None and at.uuid not in found:
        found[at.uuid] = at
        at = above[at.uuid] or by_name.get(at.before_boundary)
    return list(reversed(found.values()))
