"""A copy of a Claude Code conversation, under another id, that the program goes on with.

What is said stays as it is, down to the spelling of its numbers; entries keep their names, for
others name them. docs/design/conversations.md says what is kept and what is not.

Threading: pure functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cowfs.agents.base import MAIN
from cowfs.agents.claude.cut import cut
from cowfs.agents.claude.places import RESULTS, SUBAGENTS, SUFFIX
from cowfs.agents.claude.transcript import (
    USER,
    Line,
    Lines,
    Member,
    joined,
    lines,
    main_entries,
    member,
    members,
    parents,
    parsed,
)
from cowfs.agents.cutting import LEFT_OUT
from cowfs.agents.lenient import mapping, text, value

TITLE = "custom-title"
REPLACEMENTS = "content-replacement"
KEPT = (TITLE, "ai-title", "tag", "mode", "permission-mode", "agent-setting", REPLACEMENTS)
"""Lines that say of the session what is true of the copy as well."""
DROPPED = (
    "file-history-snapshot",
    "file-history-delta",
    "api-request",
    "api-request-shape",
    "api-request-blob",
    "agent-name",
    "atis-latch",
    "cost-state",
    "last-prompt",
    "pr-link",
    "queue-operation",
    "relocated",
    "summary",
    "tools-used",
    "worktree-state",
)
"""Lines of the original alone: its backups, its costs, its worktree, what it was about to do."""
_OF_A_TEAM = ("teamName", "agentName", "slug")
"""Members of entries by which two sessions would be one member of a team, or write one plan."""
_META = ".meta.json"
_MARK = " (copy)"
_WITH_RESULTS = ("message", "toolUseResult", "replacements")
_OF_A_PATH = r"[\w./~-]"


@dataclass(slots=True)
class Copied:
    """files: name to bytes. notes: what is not as it was, for people."""

    files: dict[str, bytes]
    notes: list[str] = field(default_factory=list)


def copied(
    main: Lines,
    files: Mapping[str, bytes],
    *,
    old: str,
    new: str,
    was: str,
    will_be: str,
    leaf: str,
) -> Copied:
    """The files of the copy. main: the lines of the transcript. old, new: ids. was, will_be: the
    directories beside the transcripts. Raises NotCopyableError."""
    entries = main_entries(main.found)
    kept = cut(entries, leaf)
    beside = {name: data for name, data in files.items() if ".." not in name.split("/")}
    results = {name: data for name, data in beside.items() if name.startswith(f"{RESULTS}/")}
    agents = {name: data for name, data in beside.items() if name.startswith(f"{SUBAGENTS}/")}
    writer = _Writer(old, new, _Paths(was, will_be, results))
    result = Copied({MAIN: writer.main(main.found, kept)})
    for name in _of({call for entry in kept for call in entry.calls}, agents):
        result.files[name] = writer.subagent(name, agents[name])
    result.files.update(results)
    result.notes.extend(_notes(main.found, entries, kept, leaf))
    if main.bad + writer.bad:
        result.notes.append(f"lines that make no sense are left out: {main.bad + writer.bad}")
    if writer.mended:
        note = "entries follow one that is missing, and were joined to the one before them"
        result.notes.append(f"{note}: {writer.mended}")
    return result


def _of(known: set[str], files: Mapping[str, bytes]) -> list[str]:
    """The files of sub-agents, without those whose call is not part of the copy."""
    agents: dict[str, list[str]] = {}
    for name in files:
        agents.setdefault(name.removesuffix(SUFFIX).removesuffix(_META), []).append(name)
    known = {"", *known}
    kept: list[str] = []
    while True:
        ready = [agent for agent in agents if _call(agent, files) in known]
        if not ready:
            return kept
        for agent in ready:
            kept += (names := agents.pop(agent))
            known.update(call for name in names for call in _calls(name, files[name]))


def _call(agent: str, files: Mapping[str, bytes]) -> str:
    """The call that started a sub-agent; "" if that is not known."""
    return text(mapping(value(files.get(f"{agent}{_META}", b""))).get("toolUseId"))


def _calls(name: str, data: bytes) -> set[str]:
    if not name.endswith(SUFFIX):
        return set()
    return {call for line in lines(data).found for call in line.calls}


class _Paths:
    """The paths of results of tools that lie in files of their own."""

    def __init__(self, was: str, will_be: str, names: Iterable[str]) -> None:
        self._names = {f"/{name}" for name in names}
        self._will_be = _spelled(will_be)
        top = re.escape(_spelled(was))
        self._any = re.compile(rf"(?<!{_OF_A_PATH}){top}(/{RESULTS}/{_OF_A_PATH}+)")

    def moved(self, written: str) -> str:
        """JSON with the paths as they will be."""
        return self._any.sub(self._path, written) if self._names else written

    def _path(self, found: re.Match[str]) -> str:
        return f"{self._will_be}{found[1]}" if found[1] in self._names else found[0]


def _spelled(path: str) -> str:
    return json.dumps(path, ensure_ascii=False)[1:-1]


@dataclass(slots=True)
class _Writer:
    """Writes lines of one session as lines of another. mended: how many entries followed one that
    is not there. bad: lines of sub-agents that make no sense."""

    old: str
    new: str
    paths: _Paths
    mended: int = 0
    bad: int = 0

    def main(self, found: Sequence[Line], kept: Sequence[Line]) -> bytes:
        """The transcript. kept: the entries that stay."""
        stays = {id(entry) for entry in kept}
        names = {entry.uuid for entry in kept}
        above = parents(kept)
        written = []
        for line in found:
            if id(line) in stays:
                written.append(self._entry(line, above[line.uuid], names))
            elif not line.uuid and _is_kept(line, names):
                written.append(self._said_of_it(line))
        return b"".join(written)

    def _entry(self, line: Line, above: Line | None, names: set[str]) -> bytes:
        changes: dict[str, Any] = {}
        if line.parent not in names and line.value["parentUuid"] is not None:
            changes["parentUuid"] = above.uuid if above else None
            self.mended += 1
        changes["forkedFrom"] = {"sessionId": self.old, "messageUuid": line.uuid}
        return self._written(line, changes, without=_OF_A_TEAM)

    def _said_of_it(self, line: Line) -> bytes:
        title = line.value.get("customTitle")
        if line.kind == TITLE and isinstance(title, str) and title and not title.endswith(_MARK):
            return self._written(line, {"customTitle": f"{title}{_MARK}"})
        return self._written(line, {})

    def subagent(self, name: str, data: bytes) -> bytes:
        """A file of a sub-agent."""
        if name.endswith(SUFFIX):
            found, bad = lines(data)
            self.bad += bad
            return b"".join(self._written(line, {}) for line in found)
        line = parsed(data)
        if line is None or "sessionId" not in line.value:
            return data
        return self._written(line, {}).rstrip(b"\n")

    def _written(
        self, line: Line, changes: Mapping[str, Any], without: Sequence[str] = ()
    ) -> bytes:
        found = [item for item in members(line.raw) if item.name not in without]
        fresh = {name: member(name, value) for name, value in changes.items()}
        if "sessionId" in line.value:
            fresh["sessionId"] = member("sessionId", self.new)
        found = [self._moved(line, fresh.get(item.name, item)) for item in found]
        present = {item.name for item in found}
        found += [item for name, item in fresh.items() if name not in present]
        return joined(found) + b"\n"

    def _moved(self, line: Line, item: Member) -> Member:
        """A member with the paths of results of tools as they will be: in results alone, for what
        the model has said stays as it is."""
        if line.kind not in (USER, REPLACEMENTS) or item.name not in _WITH_RESULTS:
            return item
        return item._replace(text=self.paths.moved(item.text))


def _is_kept(line: Line, names: set[str]) -> bool:
    if line.kind == "summary":
        return line.leaf in names
    return line.kind in KEPT


def _notes(
    found: Sequence[Line], entries: Sequence[Line], kept: Sequence[Line], leaf: str
) -> list[str]:
    notes = []
    if not leaf and len(kept) < len(entries):
        notes.append(LEFT_OUT)
    kinds = {line.kind for line in found if not line.uuid} - {*KEPT, *DROPPED}
    if kinds:
        notes.append(f"lines of unknown types are left out: {', '.join(sorted(kinds))}")
    return notes
