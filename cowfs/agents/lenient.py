"""Reading JSON that other programs wrote, whose format may change tomorrow: nothing here fails, and
what is not understood is passed over.

Threading: pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """A whole line. number: from 1. start, end: offsets; end is behind its newline. value: the
    object that it holds, {} when it holds none."""

    number: int
    start: int
    end: int
    value: dict[str, Any]


def lines(data: bytes) -> list[Line]:
    """The whole lines; what follows the last newline was not finished and is left out."""
    found = []
    start, number = 0, 0
    while (end := data.find(b"\n", start) + 1) > 0:
        number += 1
        found.append(Line(number, start, end, mapping(value(data[start:end]))))
        start = end
    return found


def value(data: bytes) -> Any:
    """A JSON value; None when it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def text(found: object) -> str:
    """A text that can be written anywhere; "" when it is none."""
    return found.encode("utf-8", "replace").decode() if isinstance(found, str) else ""


def mapping(found: object) -> dict[str, Any]:
    """An object; {} when it is none."""
    return found if isinstance(found, dict) else {}


def sequence(found: object) -> list[Any]:
    """An array; [] when it is none."""
    return found if isinstance(found, list) else []


def texts(found: object, kinds: Iterable[str] = ("text",)) -> str:
    """The text of a message, which is a string, or an array of strings and of parts that have
    a `text`. kinds: the `type` of parts that count; those without one do."""
    if isinstance(found, str):
        return text(found)
    parts = []
    for part in sequence(found):
        if isinstance(part, str):
            parts.append(text(part))
        elif mapping(part).get("type", None) in (None, *kinds):
            parts.append(text(mapping(part).get("text")))
    return "\n".join(part for part in parts if part)


def packed(found: object) -> bytes:
    """A JSON value as one line. Raises ValueError for what JSON cannot say, such as infinity."""
    try:
        return json.dumps(found, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
