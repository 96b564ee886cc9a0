"""What became of a path, in words."""

from __future__ import annotations

import os

from cowfs.cli import output
from cowfs.service.finding.steps import Event

_CREATED, _RENAMED = "created", "renamed"


def _name(path: bytes | None) -> str:
    return output.printable(os.fsdecode(path or b"")) or "."


def describe(asked: bytes, event: Event, *, several: bool) -> str:
    """ "renamed from src/a.py, modified". asked: the path that the user named. several: that there
    are others, too."""
    words = [_word(asked, event, word) for word in event.happened if word != "attributes"]
    if event.attributes:
        words.append(" and ".join(event.attributes) + " changed")
    if event.inside:
        counted = ", ".join(f"{n:,} {word}" for word, n in event.inside.items())
        words.append(f"{counted}{' and more' if event.inside_more else ''} inside")
    text = ", ".join(words)
    if event.path != asked and event.old_path != asked and _RENAMED not in event.happened:
        text += f" (as {_name(event.path)})"
    return f"{_name(asked)}: {text}" if several else text


def _word(asked: bytes, event: Event, word: str) -> str:
    if word == _RENAMED:
        if event.path == asked:
            return f"renamed from {_name(event.old_path)}"
        if event.old_path == asked:
            return f"renamed to {_name(event.path)}"
        return f"renamed from {_name(event.old_path)} to {_name(event.path)}"
    if word == _CREATED and event.old_path is not None:
        return f"created as a hard link of {_name(event.old_path)}"
    if word == _CREATED and event.again:
        return "created again, as another file"
    return word
