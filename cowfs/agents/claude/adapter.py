"""The adapter for Claude Code: where its conversations lie, what they say, and copies of them.

Threading: see base.py. `sources` and `copy` look into directories.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from cowfs.agents.base import MAIN, START, Conversation, Copy, Source, Turn
from cowfs.agents.claude import places
from cowfs.agents.claude.copying import copied
from cowfs.agents.claude.transcript import ASSISTANT, Line, lines, live, main_entries
from cowfs.agents.lenient import text

_TITLES = (("custom-title", "customTitle"), ("ai-title", "aiTitle"), ("summary", "summary"))
"""Types of lines that have a title, and its name there; the first counts most."""
_USUAL_CONFIG = ".claude"


class Claude:
    """Claude Code, 2.1.197 to 2.1.332."""

    def __init__(self) -> None:
        self.name = "claude"
        self.title = "Claude Code"

    def sources(self, transcript: str) -> list[Source]:
        return places.sources(transcript)

    def read(self, files: Mapping[str, bytes]) -> Conversation:
        found = lines(files.get(MAIN, b"")).found
        entries = main_entries(found)
        line = live(entries)
        answers = (entry.answer for entry in reversed(line))
        return Conversation(
            title=_title(found, {entry.uuid for entry in entries}),
            turns=tuple(_turns(line)),
            last_answer=next(filter(None, answers), ""),
            leaf=entries[-1].uuid if entries else START,
            cwd=next(filter(None, _all(found, "cwd")), ""),
            version=next(filter(None, _all(reversed(found), "version")), ""),
        )

    def complete(self, files: Mapping[str, bytes], last_answer: str) -> bool:
        wanted = _squeezed(last_answer)
        if not wanted:
            return True
        said: list[str] = []
        message = ""
        for entry in main_entries(lines(files.get(MAIN, b"")).found):
            another = entry.kind == ASSISTANT and entry.message != message
            if another or entry.prompt or entry.results:
                said.clear()
            if entry.kind == ASSISTANT:
                message = entry.message
                said.append(_squeezed(entry.answer))
        return wanted in ("".join(said), *said[-1:])

    def settled(self, before: bytes, after: bytes, prompt_id: str) -> str:
        last = main_entries(lines(before).found)[-1:]
        added = {entry.uuid: entry for entry in main_entries(lines(after).found)}
        asked = (entry for entry in added.values() if _is_asked(entry, prompt_id))
        at = first = next(asked, None)
        while at is not None:
            if text(at.value.get("promptId")) not in ("", prompt_id):
                return at.uuid  # of the turn before, which was broken off: it was written late
            first = added.pop(at.uuid)
            at = added.get(at.parent)
        if first is None or first.is_boundary or first.parent in [entry.uuid for entry in last]:
            return ""
        return first.parent or (START if last else "")

    def copy(
        self, files: Mapping[str, bytes], *, transcript: str, cwd: str, session: str, leaf: str = ""
    ) -> Copy:
        new = str(uuid.uuid4())
        found = lines(files.get(MAIN, b""))
        place = places.place(transcript, _all(found.found, "cwd"), cwd)
        main = os.path.join(place.directory, f"{new}{places.SUFFIX}")
        beside = places.beside(main)
        result = copied(
            found,
            files,
            old=session,
            new=new,
            was=places.beside(transcript),
            will_be=beside,
            leaf=leaf,
        )
        config = places.config(place.directory)
        if config and os.path.basename(config) != _USUAL_CONFIG:
            result.notes.append(f"Claude Code finds it only with CLAUDE_CONFIG_DIR={config}")
        return Copy(
            session=new,
            files={
                main if name == MAIN else os.path.join(beside, name): data
                for name, data in result.files.items()
            },
            command=self.resume_command(new if config else main, place.cwd),
            cwd=place.cwd,
            notes=tuple(result.notes),
        )

    def resume_command(self, session: str, cwd: str) -> tuple[str, ...]:
        return ("claude", "--resume", session)


def _title(found: Sequence[Line], names: set[str]) -> str:
    for kind, name in _TITLES:
        # The program writes summaries of other conversations into a file, too.
        own = (line for line in found if kind != "summary" or line.leaf in names)
        titles = [text(line.value.get(name)) for line in own if line.kind == kind]
        if any(titles):
            return next(filter(None, reversed(titles)))
    return ""


def _is_asked(entry: Line, prompt_id: str) -> bool:
    return bool(entry.prompt and prompt_id) and entry.value.get("promptId") == prompt_id


def _turns(line: Sequence[Line]) -> Iterable[Turn]:
    before = START
    for entry, following in zip_longest(line, line[1:]):
        if entry.prompt and not (following and following.is_output):
            said = entry.value
            yield Turn(
                entry.prompt, text(said.get("promptId")), text(said.get("timestamp")), before
            )
        before = entry.uuid


def _all(found: Iterable[Line], name: str) -> list[str]:
    return [text(line.value.get(name)) for line in found if not line.aside]


def _squeezed(said: str) -> str:
    return "".join(said.split())


def adapter(name: str) -> Claude:
    """The adapter; there is one."""
    return Claude()
