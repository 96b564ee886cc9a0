"""One story of the audit log: what a process did in one go, in words.

Threading: pure.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from cowfs.format.audit import OUTSIDE, UNKNOWN
from cowfs.service.audit.log import Process

_COMMAND_CHARACTERS = 72
_FEW = 3
_EVAL = re.compile(r"&& eval '(.+?)(?:' < /dev/null\b.*)?\Z", re.DOTALL)
"""A command line of Claude Code's tool Bash; what follows it may have been cut off."""
_INTERPRETERS = frozenset({"python", "node", "perl", "ruby"})

MADE, CHANGED, REMOVED, RENAMED = "made", "changed", "removed", "renamed"
LINKED = "linked"
EXCHANGED = "exchanged"
RESTORED, UNDONE, REDONE = "restored", "undid", "redid"
TEMPORARY = "used for a while"
_TWO_PATHS = {RENAMED: "to", EXCHANGED: "and"}


@dataclass(frozen=True, slots=True)
class Deed:
    """One operation with its paths. to_path: the second one, or None."""

    verb: str
    time: int
    path: bytes
    to_path: bytes | None
    is_directory: bool
    size: int
    count: int = 1
    replaced: bool = False


@dataclass(slots=True)
class Story:
    """What a process did in one go.

    time, until: of its first and last operation, ns since 1970. paths: all or, of many, some, each
    with the second path of a rename or None. below: the directory that has all of them. detail: id
    of the checkpoint that was restored. replacing: the second paths of renames that took the place
    of another file.
    """

    process: Process
    verb: str
    epoch: int
    time: int
    until: int
    detail: str
    files: int = 0
    directories: int = 0
    size: int = 0
    paths: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    below: bytes = b""
    replacing: set[bytes] = field(default_factory=set)

    @property
    def outside(self) -> bool:
        """Whether nobody of a session did it, though one was going on."""
        return self.process.record.outside

    def add(self, deed: Deed) -> None:
        """Take one more in."""
        count = self.files + self.directories
        self.below = common(self.below, deed.path) if count else deed.path
        self.time, self.until = min(self.time, deed.time), max(self.until, deed.time)
        if deed.is_directory:
            self.directories += 1
        else:
            self.files += 1
        self.size += deed.size
        self.paths.append((deed.path, deed.to_path))
        if deed.replaced and deed.to_path is not None:
            self.replacing.add(deed.to_path)

    def who(self) -> str:
        """Who did it."""
        return name_of(self.process)

    def what(self) -> str:
        """What was done."""
        if self.verb in (RESTORED, UNDONE, REDONE):
            return self._restored()
        if self.verb == TEMPORARY:
            return f"made and removed again {self._things()}"
        to = self.paths[0][1] if len(self.paths) == 1 else None
        if to is not None:
            if self.verb == LINKED:
                return f"linked {_text(to)} as {_text(self.paths[0][0])}"
            return f"{self.verb} {_text(self.paths[0][0])} {_TWO_PATHS[self.verb]} {_text(to)}"
        return f"{self.verb} {self._things()}"

    def _restored(self) -> str:
        paths = [path for path, _ in self.paths if path]
        things = self._things() if paths else "everything"
        if self.verb == RESTORED:
            return f"restored {things} to {self.detail[:8]}"
        what = "a restore" if self.verb == UNDONE else "an undo"
        return f"{self.verb} {what}: back to {self.detail[:8]}"

    def _things(self) -> str:
        if self.files + self.directories <= _FEW and len(self.paths) <= _FEW:
            names = [_text(path) for path, _ in self.paths]
            return " and ".join((", ".join(names[:-1]), names[-1]) if names[1:] else names)
        counts = [
            f"{count:,} {one if count == 1 else many}"
            for count, one, many in (
                (self.files, "file", "files"),
                (self.directories, "directory", "directories"),
            )
            if count
        ]
        below = f" below {_text(self.below)}/" if self.below else ""
        return " and ".join(counts) + below

    def to_json(self) -> dict[str, Any]:
        return {
            "time": self.time,
            "until": self.until,
            "epoch": self.epoch,
            "process": self.process.to_json(),
            "operation": self.verb,
            "files": self.files,
            "directories": self.directories,
            "bytes": self.size,
            "below": os.fsdecode(self.below),
            "paths": [_pair(pair) for pair in self.paths],
            "checkpoint": self.detail or None,
            "outside": self.outside,
            "text": f"{self.who()} {self.what()}",
        }


def name_of(process: Process) -> str:
    """How a process is called: by what started it and its command line, a shell by its name; and by
    the session that it belongs to."""
    name = _name_of(process)
    return f"{name} in session {process.session}" if process.session else name


def _name_of(process: Process) -> str:
    if process.number == OUTSIDE:
        return "somebody outside"
    if process.number == UNKNOWN or not (process.record.name or process.record.command):
        return "an unknown process"
    words = process.arguments
    wanted = _evaluated(words)
    if wanted:
        line = wanted
    elif words[1:] or os.path.basename(words[0]).lstrip("-") != process.record.name:
        line = " ".join(_quoted(word) for word in _short(words))
    elif not process.parents:
        return process.record.name
    else:
        line = process.record.name
    if len(line) > _COMMAND_CHARACTERS:
        line = line[: _COMMAND_CHARACTERS - 1] + "…"
    parent = next((p.name for p in process.parents if p.name), "")
    if not words[1:] and line in ("sh", "bash", "dash", "zsh", "fish", "ksh"):
        return line
    return f"{parent} `{line}`" if parent else f"`{line}`"


def _evaluated(words: list[str]) -> str:
    """What an agent had a shell do, if it is in what its tool puts around it; else ""."""
    if len(words) < 3 or "-c" not in words[1:3] or not (found := _EVAL.search(words[-1])):
        return ""
    return " ".join(found[1].replace("'\"'\"'", "'").replace("'\\''", "'").split())


def _short(words: list[str]) -> list[str]:
    """A command line without the directory of its program, and of a script without what runs it."""
    name = os.path.basename(words[0])
    script = words[1] if words[1:] else ""
    if name.rstrip("0123456789.") in _INTERPRETERS and "/" in script and script[:1] != "-":
        return [os.path.basename(script), *words[2:]]
    return [name or words[0], *words[1:]]


def _quoted(word: str) -> str:
    """As it was typed, more or less, on one line."""
    line = " ".join(word.split())
    return line if line and line == word and not set(line) & set(" '\"$;|&<>()*?") else f"'{line}'"


def _pair(pair: tuple[bytes, bytes | None]) -> dict[str, str | None]:
    path, to = pair
    return {
        "path": os.fsdecode(path) or ".",
        "to": None if to is None else os.fsdecode(to),
    }


def _text(path: bytes) -> str:
    return os.fsdecode(path) or "."


def common(one: bytes, two: bytes) -> bytes:
    """The longest path that is, or has below it, both."""
    if two == one or two.startswith(one + b"/"):
        return one
    parts = []
    for a, b in zip(one.split(b"/"), two.split(b"/"), strict=False):
        if a != b:
            break
        parts.append(a)
    return b"/".join(parts)
