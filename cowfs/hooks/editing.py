"""Changing a JSON document that belongs to somebody else. What is not meant stays as it is, byte
for byte: order, indentation, comments where the format has them.

Values are put in and taken out as text, at places that a parser with positions finds. After each
change the text is read again and must mean what it should.

Threading: a document belongs to one thread.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

_BLANK = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(slots=True)
class _Node:
    """A value in the text. items: of an object or a list: (key or None, where the item begins, its
    value)."""

    start: int
    end: int
    value: Any
    items: list[tuple[str | None, int, _Node]] = field(default_factory=list)


class _Parser:
    """RFC 8259; with `comments` also `//`, `/* */` and a comma after the last item."""

    def __init__(self, text: str, *, comments: bool) -> None:
        self._text = text
        self._comments = comments

    def parse(self) -> _Node:
        """Raises ValueError."""
        node = self._value(self.skip(0))
        end = self.skip(node.end)
        if end != len(self._text):
            raise self._fault("something follows the value", end)
        return node

    def skip(self, at: int) -> int:
        """Past blanks and comments."""
        while True:
            found = _BLANK.match(self._text, at)
            at = found.end() if found else at
            comment = _COMMENT.match(self._text, at) if self._comments else None
            if comment is None:
                return at
            at = comment.end()

    def _fault(self, what: str, at: int) -> ValueError:
        return ValueError(f"line {self._text.count(chr(10), 0, at) + 1}: {what}")

    def _value(self, at: int) -> _Node:
        first = self._text[at : at + 1]
        if first == "{":
            return self._object(at)
        if first == "[":
            return self._list(at)
        if first == '"':
            value, end = self._string(at)
            return _Node(at, end, value)
        for word, meaning in _WORDS.items():
            if self._text.startswith(word, at):
                return _Node(at, at + len(word), meaning)
        number = _NUMBER.match(self._text, at)
        if number is None:
            raise self._fault("a value is missing" if first else "it ends too early", at)
        return _Node(at, number.end(), json.loads(number[0]))

    def _string(self, at: int) -> tuple[str, int]:
        try:
            value, end = scanstring(self._text, at + 1, True)
        except ValueError:
            raise self._fault("a string that is none", at) from None
        return str(value), int(end)

    def _object(self, start: int) -> _Node:
        node = _Node(start, start, {})
        at = self.skip(start + 1)
        while not self._ends(node, at, "}"):
            if self._text[at : at + 1] != '"':
                raise self._fault("a key is missing", at)
            key, end = self._string(at)
            colon = self.skip(end)
            if self._text[colon : colon + 1] != ":":
                raise self._fault("a colon is missing", colon)
            inner = self._value(self.skip(colon + 1))
            if key in node.value:
                raise self._fault(f"the key {key!r} is there twice", at)
            node.value[key] = inner.value
            node.items.append((key, at, inner))
            at = self._next(inner.end, "}")
        return node

    def _list(self, start: int) -> _Node:
        node = _Node(start, start, [])
        at = self.skip(start + 1)
        while not self._ends(node, at, "]"):
            inner = self._value(at)
            node.value.append(inner.value)
            node.items.append((None, at, inner))
            at = self._next(inner.end, "]")
        return node

    def _ends(self, node: _Node, at: int, bracket: str) -> bool:
        if self._text[at : at + 1] != bracket:
            return False
        node.end = at + 1
        return True

    def _next(self, end: int, bracket: str) -> int:
        """Where the next item begins, or the end is."""
        at = self.skip(end)
        if self._text[at : at + 1] == ",":
            following = self.skip(at + 1)
            if self._text[following : following + 1] == bracket and not self._comments:
                raise self._fault("a comma with nothing after it", at)
            return following
        if self._text[at : at + 1] != bracket:
            raise self._fault(f"a comma or {bracket} is missing", at)
        return at


class Document:
    """A JSON document and its text."""

    def __init__(self, text: str, *, comments: bool = False) -> None:
        """Raises ValueError when it is none; the message says in which line."""
        self._comments = comments
        self.text = text
        self._root = self._parsed(text)
        if not isinstance(self._root.value, dict):
            raise ValueError("it is no JSON object")

    def _parsed(self, text: str) -> _Node:
        try:
            return _Parser(text, comments=self._comments).parse()
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    @property
    def value(self) -> dict[str, Any]:
        """What it means; not to be modified."""
        value = self._root.value
        assert isinstance(value, dict)
        return value

    def get(self, at: tuple[str, ...]) -> Any:
        """The value that keys lead to, None when there is none."""
        node = self._find(at)
        return node.value if node is not None else None

    def _find(self, at: tuple[str, ...]) -> _Node | None:
        node: _Node | None = self._root
        for key in at:
            if node is None or not isinstance(node.value, dict):
                return None
            node = next((inner for name, _, inner in node.items if name == key), None)
        return node

    def set(self, at: tuple[str, ...], value: Any) -> None:
        """Put a value where there is none. Raises ValueError when something else is in the way."""
        known = len(at) - 1
        while self._find(at[:known]) is None:
            known -= 1
        above = self._find(at[:known])
        assert above is not None
        if not isinstance(above.value, dict) or at[known] in above.value:
            raise ValueError(f"{'.'.join(at[: known + 1])} is something else there")
        for key in reversed(at[known + 1 :]):
            value = {key: value}
        self._insert(above, at[known], value)

    def append(self, at: tuple[str, ...], value: Any) -> None:
        """Add an element to a list, which is made if need be. Raises ValueError."""
        node = self._find(at)
        if node is None:
            self.set(at, [value])
        elif isinstance(node.value, list):
            self._insert(node, None, value)
        else:
            raise ValueError(f"{'.'.join(at)} is no list there")

    def remove(self, at: tuple[str, ...], number: int | None = None) -> None:
        """Take out what keys lead to, or an element of that list."""
        node = self._find(at if number is not None else at[:-1])
        assert node is not None
        if number is None:
            number = next(i for i, (name, _, _) in enumerate(node.items) if name == at[-1])
        wanted = json.loads(json.dumps(node.value))
        del wanted[list(wanted)[number] if isinstance(wanted, dict) else number]
        self._change(node, self._without(node, number), wanted)

    def replace(self, at: tuple[str, ...], number: int, value: Any) -> None:
        """Another value for an element of a list."""
        node = self._find(at)
        assert node is not None
        inner = node.items[number][2]
        wanted = json.loads(json.dumps(node.value))
        wanted[number] = value
        indent = self._indent_of(inner.start)
        item = json.dumps(value, ensure_ascii=False)
        if "\n" in self.text[inner.start : inner.end]:
            item = self._pretty(value, indent or self._line_start(inner.start))
        text = self.text[: inner.start] + item + self.text[inner.end :]
        self._change(node, text, wanted)

    # -- text -------------------------------------------------------------------------------------

    def _change(self, node: _Node, text: str, wanted: Any) -> None:
        """Take a new text over in which `node`, which begins where it began, has another value.
        Raises ValueError if it has not."""
        fresh = self._parsed(text)
        place = self._path(self._root, node)
        found = fresh
        for number in place:
            found = found.items[number][2]
        if found.value != wanted:
            raise ValueError("nobody knows how to change it and leave the rest as it is")
        self.text, self._root = text, fresh

    def _path(self, top: _Node, node: _Node) -> list[int]:
        """The numbers of the items that lead to a node."""
        if top is node:
            return []
        for number, (_, _, inner) in enumerate(top.items):
            if inner.start <= node.start < inner.end:
                return [number, *self._path(inner, node)]
        raise AssertionError("no such node")

    def _insert(self, node: _Node, key: str | None, value: Any) -> None:
        name = f"{json.dumps(key, ensure_ascii=False)}: " if key is not None else ""
        wanted = json.loads(json.dumps(node.value))
        if key is None:
            wanted.append(value)
        else:
            wanted[key] = value
        if node.items:
            text = self._after_last(node, name, value)
        else:
            text = self._into_empty(node, name, value)
        self._change(node, text, wanted)

    def _after_last(self, node: _Node, name: str, value: Any) -> str:
        text = self.text
        _, start, last = node.items[-1]
        indent = self._indent_of(start)
        at = _Parser(text, comments=self._comments).skip(last.end)
        trailing = text[at] == ","
        end = at + 1 if trailing else last.end
        if indent is None:
            joint = " " if trailing else ", "
            return text[:end] + joint + name + json.dumps(value, ensure_ascii=False) + text[end:]
        item = name + self._pretty(value, indent) + ("," if trailing else "")
        comma = "" if trailing else ","
        place = self._end_of_line(end)
        return text[:end] + comma + text[end:place] + self._newline + indent + item + text[place:]

    def _into_empty(self, node: _Node, name: str, value: Any) -> str:
        text, newline = self.text, self._newline
        base = self._line_start(node.start)
        if self._root.items and "\n" not in text.strip():
            item = name + json.dumps(value, ensure_ascii=False)
            return text[: node.start + 1] + item + text[node.end - 1 :]
        indent = base + self._unit
        item = name + self._pretty(value, indent)
        kept = text[node.start + 1 : node.end - 1].rstrip()
        return (text[: node.start + 1] + kept + newline + indent + item + newline + base) + text[
            node.end - 1 :
        ]

    def _without(self, node: _Node, number: int) -> str:
        text = self.text
        _, start, inner = node.items[number]
        skip = _Parser(text, comments=self._comments).skip
        after = skip(inner.end)
        if number:
            before = node.items[number - 1][2].end
            between = text[before:start]
            if text[after] == ",":
                return (
                    text[:before] + between.rstrip() + text[inner.end : after] + text[after + 1 :]
                )
            return text[:before] + _without_comma(between, self._comments) + text[inner.end :]
        end = after + 1 if text[after] == "," else inner.end
        if len(node.items) > 1:
            following = node.items[1][1]
            between = text[end:following]
            return text[:start] + (between.lstrip() if between.strip() else "") + text[following:]
        around = text[node.start + 1 : start].rstrip() + text[end : node.end - 1]
        return text[: node.start + 1] + (around if around.strip() else "") + text[node.end - 1 :]

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    @property
    def _unit(self) -> str:
        """One step of indentation, as the document has it."""
        for _, start, _ in self._root.items:
            if indent := self._indent_of(start):
                return indent
        return "  "

    def _pretty(self, value: Any, indent: str) -> str:
        lines = json.dumps(value, indent=self._unit, ensure_ascii=False).split("\n")
        return (self._newline + indent).join(lines)

    def _indent_of(self, at: int) -> str | None:
        """What stands before an item in its line; None if that is not only blanks."""
        begin = self.text.rfind("\n", 0, at) + 1
        before = self.text[begin:at]
        return before if begin and not before.strip() else None

    def _line_start(self, at: int) -> str:
        """The blanks with which a line begins."""
        begin = self.text.rfind("\n", 0, at) + 1
        found = re.compile(r"[ \t]*").match(self.text, begin)
        return found[0] if found else ""

    def _end_of_line(self, at: int) -> int:
        """The end of a line if nothing but blanks and comments is left in it; else where it is."""
        end = at
        while True:
            while self.text[end : end + 1] in (" ", "\t"):
                end += 1
            comment = _COMMENT.match(self.text, end) if self._comments else None
            if comment is None or "\n" in comment[0]:
                break
            end = comment.end()
        if self.text[end : end + 1] == "\r" and self.text[end + 1 : end + 2] == "\n":
            return end
        return end if self.text[end : end + 1] == "\n" else at


def _without_comma(between: str, comments: bool) -> str:
    """What stood between two items, of which the second one went: its comments."""
    if not comments or not _COMMENT.search(between):
        return ""
    at = 0
    while between[at : at + 1] != ",":
        found = _COMMENT.match(between, at)
        at = found.end() if found else at + 1
    return (between[:at] + between[at + 1 :]).rstrip()
