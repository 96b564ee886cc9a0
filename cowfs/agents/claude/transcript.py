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
from typing import Any, NamedTuple

from cowfs.agents.lenient import mapping, sequence, text, texts

USER, ASSISTANT, SYSTEM, ATTACHMENT = "user", "assistant", "system", "attachment"
_THOUGHTS = ("thinking", "redacted_thinking")
_LARGE = ("toolUseResult", "snapshot")
_NOTIFICATION = "<task-notification>"
_NO_PROMPTS = (
    _NOTIFICATION,
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
_OPEN, _CLOSE = re.compile(r"[ \t\r\n]*\{"), re.compile(r"[ \t\r\n]*\}[ \t\r\n]*\Z")
_KEY = re.compile(r'[ \t\r\n]*("(?:[^"\\]|\\.)*")[ \t\r\n]*:[ \t\r\n]*')
_COMMA = re.compile(r"[ \t\r\n]*,")


class Member(NamedTuple):
    """A member of an object. key, text: the name and the value as they are written."""

    name: str
    key: str
    text: str


def members(line: bytes) -> list[Member]:
    """The members of the object that a line holds, in order. Raises ValueError or RecursionError
    when it holds none."""
    written = line.decode("utf-8", "surrogateescape")
    found: list[Member] = []
    opened = _OPEN.match(written)
    if not opened:
        raise ValueError("it does not begin with a brace")
    at = stop = opened.end()
    while key := _KEY.match(written, at):
        name = key[1]
        _, stop = _DECODER.raw_decode(written, key.end())
        plain = name[1:-1] if "\\" not in name else json.loads(name)
        found.append(Member(plain, name, written[key.end() : stop]))
        comma = _COMMA.match(written, stop)
        at = comma.end() if comma else stop
        if not comma:
            break
    if at != stop or not _CLOSE.match(written, at):
        raise ValueError("it does not end as an object does")
    return found


def joined(found: Iterable[Member]) -> bytes:
    """A line, without its newline."""
    text = ",".join(f"{key}:{value}" for _, key, value in found)
    return f"{{{text}}}".encode("utf-8", "surrogateescape")


def member(name: str, value: Any) -> Member:
    """A new member."""
    return Member(name, json.dumps(name), json.dumps(value, separators=(",", ":")))


@dataclass(frozen=True, slots=True)
class Line:
    """A line that holds an object. value: its members but the largest, by name. kind: its type.
    uuid: the name of an entry, "" for a line that is none; parent: that of the entry that it
    follows, "" for none. aside: whether it is of a sub-agent."""

    raw: bytes
    value: Mapping[str, Any]
    kind: str
    uuid: str
    parent: str
    aside: bool

    @property
    def leaf(self) -> str:
        """The entry that a line which is none is about."""
        return text(self.value.get("leafUuid"))

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
        kinds = {text(mapping(part).get("type")) for part in sequence(self.content)}
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
    def begins_turn(self) -> bool:
        """Whether the model is asked anew: by the user, or because a task in the background has
        ended. Of calls before it that have no result nobody waits any more."""
        return bool(self.prompt) or (
            self.kind == USER
            and not (self.aside or self.is_meta)
            and texts(self.content).lstrip().startswith(_NOTIFICATION)
        )

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


class Lines(NamedTuple):
    """The lines of a file that hold an object, and how many others there are."""

    found: list[Line]
    bad: int


def lines(data: bytes) -> Lines:
    """What follows the last newline is not finished, and no line."""
    found, bad = [], 0
    for raw in data.split(b"\n")[:-1]:
        line = parsed(raw)
        if line:
            found.append(line)
        else:
            bad += bool(raw.strip())
    return Lines(found, bad)


def parsed(raw: bytes) -> Line | None:
    """A line; None if it holds no object."""
    try:
        value = json.loads(raw.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    for name in _LARGE:
        value.pop(name, None)
    return Line(
        raw,
        value,
        kind=text(value.get("type")),
        uuid=text(value.get("uuid")) if "parentUuid" in value else "",
        parent=text(value.get("parentUuid")),
        aside=value.get("isSidechain") is True,
    )


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
