"""Where Claude Code keeps a conversation: CONFIG/projects/SLUG/ID.jsonl, and what belongs to it in
the directory ID beside that. The slug is made of the directory that the program was started in.

Threading: `sources` and `place` look into directories; the rest is pure.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cowfs.agents.base import MAIN, Source

SUBAGENTS, RESULTS = "subagents", "tool-results"
SUFFIX = ".jsonl"
MOST_FILES = 10_000
"""Of one conversation; those beyond are left out."""
_DEEPEST = 8
_LONGEST_SLUG = 200
_OTHER = re.compile(r"[^A-Za-z0-9]")


def beside(transcript: str) -> str:
    """The directory with what belongs to a transcript."""
    return transcript.removesuffix(SUFFIX)


def sources(transcript: str) -> list[Source]:
    """The files of a conversation; symbolic links are none of it."""
    found = [Source(MAIN, transcript, "lines")]
    if transcript.endswith(SUFFIX) and _is_directory(beside(transcript)):
        for name in (SUBAGENTS, RESULTS):
            for path in _files(beside(transcript), name, _DEEPEST):
                if len(found) >= MOST_FILES:
                    break
                grows = name == SUBAGENTS and path.endswith(SUFFIX)
                whole = os.path.join(beside(transcript), path)
                found.append(Source(path, whole, "lines" if grows else "whole"))
    return found


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _files(top: str, name: str, depth: int) -> Iterator[str]:
    """Regular files below top/name, relative to `top`, by name. The program gives them plain names;
    others are not its own."""
    if not depth or not _is_directory(os.path.join(top, name)):
        return
    try:
        with os.scandir(os.path.join(top, name)) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = f"{name}/{entry.name}"
        if not entry.name.isprintable():
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(top, path, depth - 1)
        elif entry.is_file(follow_symlinks=False):
            yield path


def slug(path: str) -> str:
    """The name of the directory for conversations that were begun in `path`, a real path. Longer
    ones than 200 characters are cut there, and go on with a hash that is not known here."""
    # The program counts in units of UTF-16.
    return _OTHER.sub(lambda found: "--" if found[0] > "\uffff" else "-", path)


def _is_of(name: str, path: str) -> bool:
    made = slug(path)
    if len(made) > _LONGEST_SLUG:
        return name.startswith(f"{made[:_LONGEST_SLUG]}-")
    return name == made


@dataclass(frozen=True, slots=True)
class Place:
    """directory: where the transcript lies. cwd: where the program has to be started."""

    directory: str
    cwd: str


def place(transcript: str, ran_in: Iterable[str], cwd: str) -> Place:
    """The place for a copy. ran_in: the working directories that the conversation had, in order.
    cwd: where it is to go on, "" for where it was."""
    ran = [path for path in ran_in if path]
    directory = os.path.dirname(transcript)
    projects, name = os.path.split(directory)
    began = next((path for path in ran if _is_of(name, path)), ran[0] if ran else cwd)
    if not cwd or cwd in ran or os.path.realpath(cwd) == began:
        return Place(directory, began)
    real = os.path.realpath(cwd)
    return Place(_project(projects, real) or directory, cwd)


def _project(projects: str, path: str) -> str:
    """The directory for conversations that were begun in `path`; "" if its name is not known: the
    program finds those of other projects, too."""
    made = slug(path)
    if len(made) <= _LONGEST_SLUG:
        return os.path.join(projects, made)
    try:
        names = [name for name in os.listdir(projects) if _is_of(name, path)]
    except OSError:
        names = []
    return os.path.join(projects, names[0]) if len(names) == 1 else ""


def config(directory: str) -> str:
    """The program's configuration directory, of which a directory of conversations is part; "" if
    it is part of none, and so the program does not find conversations there by their id alone."""
    above, name = os.path.split(os.path.dirname(directory))
    return above if name == "projects" else ""
