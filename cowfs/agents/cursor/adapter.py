"""Cursor: what is kept is the *transcript*, which Cursor writes beside its own database.

`~/.cursor/projects/PROJECT/agent-transcripts/ID/ID.jsonl`, lines with `role` and `message.content`,
those of sub-agents in `subagents/` there; older versions wrote `ID.txt`. Cursor goes on from its
database and never from these files, so no copy of them could be resumed.

Made after Cursor's documentation of autumn 2026: it can only be used with an account, so this was
not checked with the program.

Threading: see base.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from cowfs.agents.base import MAIN, Conversation, Copy, NotCopyableError, Source, Turn
from cowfs.agents.cutting import entry
from cowfs.agents.lenient import lines, mapping, text, texts

_QUERY = re.compile(r"<user_query>\s*(.*?)\s*</user_query>", re.DOTALL)


class Cursor:
    """See the module."""

    name = "cursor"
    title = "Cursor"

    def sources(self, transcript: str) -> list[Source]:
        if not transcript.endswith(".jsonl"):
            return [Source(MAIN, transcript, "whole")]
        found = [Source(MAIN, transcript, "lines")]
        directory = os.path.join(os.path.dirname(transcript), "subagents")
        try:
            names = sorted(name for name in os.listdir(directory) if name.endswith(".jsonl"))
        except OSError:
            names = []
        found += [
            Source(os.path.join("subagents", name), os.path.join(directory, name), "lines")
            for name in names
        ]
        return found

    def read(self, files: Mapping[str, bytes]) -> Conversation:
        turns, answer, leaf = [], "", entry(0)
        for line in lines(files.get(MAIN, b"")):
            said = texts(mapping(line.value.get("message")).get("content"))
            match line.value.get("role"):
                case "user" if said:
                    asked = _QUERY.search(said)
                    turns.append(Turn(asked[1] if asked is not None else said, leaf=leaf))
                case "assistant":
                    answer = said or answer
            leaf = entry(line.number)
        return Conversation(turns=tuple(turns), last_answer=text(answer), leaf=leaf)

    def complete(self, files: Mapping[str, bytes], last_answer: str) -> bool:
        return True

    def copy(
        self, files: Mapping[str, bytes], *, transcript: str, cwd: str, session: str, leaf: str = ""
    ) -> Copy:
        raise NotCopyableError(
            "Cursor goes on from a database of its own; its transcript is only a record of that"
        )

    def resume_command(self, session: str, cwd: str) -> tuple[str, ...]:
        return ("cursor-agent", "--resume", session)


def adapter(name: str) -> Cursor:
    """The adapter."""
    return Cursor()
